import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.DefaultHashAlgorithm;
import net.spy.memcached.FailureMode;
import net.spy.memcached.MemcachedClient;

/** Does what its input says with the client of docs/fleet.md, a line at a time. */
public final class Fleet {
    public static void main(String[] arguments) throws Exception {
@CLIENT@
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            String answer;
            try {
                if (words[0].equals("set")) {
                    answer = client.set(words[1], 0, words[2]).get(10, TimeUnit.SECONDS) ? "OK" : "ERROR not stored";
                } else {
                    Object found = client.asyncGet(words[1]).get(10, TimeUnit.SECONDS);
                    answer = found == null ? "MISS" : found.toString();
                }
            } catch (Exception error) {
                answer = "ERROR " + error.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
        client.shutdown();
    }
}
