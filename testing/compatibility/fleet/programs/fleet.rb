# Does what its input says with the client of docs/fleet.md, a line at a time.
@CLIENT@

Dalli.logger.level = Logger::ERROR
$stdout.sync = true
while (line = $stdin.gets)
  verb, key, value = line.split
  begin
    if verb == "set"
      puts cache.set(key, value) ? "OK" : "ERROR not stored"
    else
      puts cache.get(key) || "MISS"
    end
  rescue StandardError => error
    puts "ERROR #{error.class} #{error.message.tr("\n", " ")}"
  end
end
