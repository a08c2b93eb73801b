<?php
// Uses php-memcached as most programs do: a get, and if it finds nothing, a computation and a set. hold.py has the arguments and says what is
// printed.
[, $host, $port, $keys, $ttl, $computes_ms, $seconds] = $argv;
$client = new Memcached();
$client->addServer($host, (int) $port);
$client->setOption(Memcached::OPT_POLL_TIMEOUT, 20000);
$client->set('always', 'there');
$computed = $gets = 0;
$times = [];
$end = microtime(true) + (int) $seconds;
while (microtime(true) < $end) {
    $key = 'user:' . random_int(0, (int) $keys - 1);
    $gets++;
    if ($client->get($key) === false) {
        $computed++;
        usleep(1000 * (int) $computes_ms);
        $client->set($key, 'computed', (int) $ttl);
    }
    $begun = hrtime(true);
    if ($client->get('always') !== 'there') {
        fwrite(STDERR, "a key that is always there is missed\n");
        exit(1);
    }
    $times[] = hrtime(true) - $begun;
    usleep(random_int(0, 10000));
}
sort($times);
printf("%d %d %d\n", $computed, $gets, $times[intdiv(count($times) * 99, 100)] / 1000);
