<?php
/* Does what its input says with the client of docs/fleet.md, a line at a time. */
@CLIENT@
while (($line = fgets(STDIN)) !== false) {
    $words = explode(' ', trim($line));
    if ($words[0] === 'set') {
        echo $cache->set($words[1], $words[2]) ? "OK\n" : 'ERROR ' . $cache->getResultMessage() . "\n";
        continue;
    }
    $value = $cache->get($words[1]);
    if ($value !== false) {
        echo "$value\n";
    } else {
        echo $cache->getResultCode() === Memcached::RES_NOTFOUND ? "MISS\n" : 'ERROR ' . $cache->getResultMessage() . "\n";
    }
}
