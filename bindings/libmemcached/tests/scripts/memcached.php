<?php
// php-memcached widely used: every answer is printed, and must be the same with every libmemcached.
[, $host, $port, $socket] = $argv;

function show(string $what, ...$values): void {
    echo $what, ": ", json_encode($values, JSON_PARTIAL_OUTPUT_ON_ERROR), "\n";
}

function result(Memcached $m): string {
    return $m->getResultCode() . " " . preg_replace('/^\(0x[0-9a-f]+\) /', '', strtok($m->getResultMessage(), ","));
}

function basics(Memcached $m): void {
    show("flush", $m->flush(), result($m));
    foreach (["text", "", 5, 5.5, true, false, null, [1, "two", ["three" => 3]], str_repeat("long", 1000)] as $value) {
        show("set", $m->set("k", $value), $m->get("k") === $value, result($m));
    }
    $m->set("object", new ArrayObject([1, 2]));
    show("object", count($m->get("object")));
    show("absent", $m->get("absent"), result($m));
    show("read through", $m->get("through", function ($m, $key, &$value, &$expiration) { $value = "made of $key"; return true; }), $m->get("through"));
    show("add", $m->add("k", 1), result($m), $m->add("new", 1), result($m));
    show("replace", $m->replace("k", 2), result($m), $m->replace("none", 2), result($m));
    $m->setOption(Memcached::OPT_COMPRESSION, false);
    $m->set("text", "middle");
    show("append", $m->append("text", " end"), $m->prepend("text", "start "), $m->get("text"));
    show("append none", $m->append("none", "x"), result($m));
    show("delete", $m->delete("k"), result($m), $m->delete("k"), result($m));
    show("touch", $m->touch("text", 100), result($m), $m->touch("absent", 100), result($m));
    show("expired", $m->set("old", 1, 1000000000), $m->get("old"), result($m));
    show("by key", $m->setByKey("server", "bk", "v"), $m->getByKey("server", "bk"), $m->addByKey("server", "bk", 1), $m->replaceByKey("server", "bk", 2),
        $m->touchByKey("server", "bk", 50), $m->deleteByKey("server", "bk"), $m->getByKey("server", "bk"));
    show("long key", $m->set(str_repeat("k", 251), 1), result($m));
    show("empty key", $m->set("", 1), result($m));
    show("blank", $m->set("a b", 1), result($m));
    show("large", $m->set("large", random_bytes(2 << 20)), result($m));
}

function numbers(Memcached $m, bool $binary): void {
    $m->set("n", 10);
    show("increment", $m->increment("n"), $m->increment("n", 5), $m->decrement("n", 3), $m->decrement("n", 100), result($m));
    show("none", $m->increment("no-number"), result($m));
    $m->set("word", "word");
    show("word", @$m->increment("word"), result($m));
    if ($binary) {
        show("initial", $m->increment("initial", 2, 50), $m->increment("initial", 2, 50), $m->decrement("other", 1, 9, 100), result($m));
        show("by key", $m->incrementByKey("s", "bkn", 1, 5), $m->decrementByKey("s", "bkn", 2));
    }
}

function many(Memcached $m): void {
    show("setMulti", $m->setMulti(["a" => 1, "b" => "two", "c" => [3]]), result($m));
    show("getMulti", $m->getMulti(["a", "b", "c", "d"]), result($m));
    show("in order", $m->getMulti(["d", "c", "a"], Memcached::GET_PRESERVE_ORDER));
    show("extended", array_map(fn ($item) => [$item["value"], $item["flags"], $item["cas"] > 0], $m->getMulti(["a", "b"], Memcached::GET_EXTENDED)));
    show("by key", $m->setMultiByKey("s", ["x" => 1, "y" => 2]), $m->getMultiByKey("s", ["x", "y", "z"]));
    show("delayed", $m->getDelayed(["a", "b", "d"], true), result($m));
    $all = [];
    while ($item = $m->fetch()) $all[] = [$item["key"], $item["value"], $item["cas"] > 0];
    sort($all);
    show("fetched", $all, result($m));
    $m->getDelayed(["a", "c"]);
    $all = $m->fetchAll();
    show("fetchAll", count($all), result($m));
    $called = 0;
    show("callback", $m->getDelayed(["a", "b"], false, function ($m, $item) use (&$called) { $called++; }), $called);
    show("deleteMulti", $m->deleteMulti(["a", "nothing"]), result($m));
    $large = [];
    for ($i = 0; $i < 500; $i++) $large["key$i"] = str_repeat("v", $i);
    show("500", $m->setMulti($large), $m->getMulti(array_keys($large)) == $large);
}

function comparing(Memcached $m): void {
    $m->set("cas", "one");
    $item = $m->get("cas", null, Memcached::GET_EXTENDED);
    show("cas", $item["value"], $m->cas($item["cas"], "cas", "two"), result($m), $m->cas($item["cas"], "cas", "three"), result($m), $m->get("cas"));
    show("cas none", $m->cas($item["cas"], "absent", 1), result($m));
    show("cas by key", $m->casByKey($m->get("cas", null, Memcached::GET_EXTENDED)["cas"], "s", "cas", 4), $m->get("cas"));
}

function options(Memcached $m): void {
    $m->setOption(Memcached::OPT_PREFIX_KEY, "ns:");
    show("prefix", $m->getOption(Memcached::OPT_PREFIX_KEY), $m->set("p", 1), $m->get("p"), $m->getMulti(["p"]));
    $m->setOption(Memcached::OPT_PREFIX_KEY, "");
    show("no prefix", $m->get("p"), $m->get("ns:p"));
    foreach ([Memcached::OPT_TCP_NODELAY => true, Memcached::OPT_NO_BLOCK => true, Memcached::OPT_CONNECT_TIMEOUT => 77, Memcached::OPT_POLL_TIMEOUT => 88,
        Memcached::OPT_HASH => Memcached::HASH_MD5, Memcached::OPT_DISTRIBUTION => Memcached::DISTRIBUTION_CONSISTENT,
        Memcached::OPT_LIBKETAMA_COMPATIBLE => true, Memcached::OPT_SERVER_FAILURE_LIMIT => 4, Memcached::OPT_NUMBER_OF_REPLICAS => 0] as $option => $value) {
        show("option", $m->setOption($option, $value), $m->getOption($option), $m->set("o", $option), $m->get("o"));
    }
    show("serializer", $m->setOption(Memcached::OPT_SERIALIZER, Memcached::SERIALIZER_JSON_ARRAY), $m->set("j", ["a" => [1, 2]]), $m->get("j"));
    $m->setOption(Memcached::OPT_SERIALIZER, Memcached::SERIALIZER_PHP);
    $m->setOption(Memcached::OPT_COMPRESSION, true);
    show("compressed", $m->set("z", str_repeat("z", 100000)), $m->get("z") === str_repeat("z", 100000));
}

function servers(Memcached $m): void {
    $stats = array_values($m->getStats());
    show("stats", count($stats), $stats[0]["pid"] > 0, $stats[0]["threads"], $stats[0]["pointer_size"]);
    show("version", count($m->getVersion()), result($m));
    show("by key", $m->getServerByKey("x")["weight"]);
    show("flags", $m->isPersistent(), $m->isPristine(), $m->getLastErrorCode(), $m->getLastErrorErrno());
    show("disconnect", $m->getLastDisconnectedServer());
    show("flushBuffers", $m->flushBuffers(), $m->quit(), $m->set("after", 1), $m->get("after"));
    show("reset", $m->resetServerList(), $m->getServerList(), $m->set("x", 1), result($m));
}

foreach ([false, true] as $binary) {
    foreach ([[$host, (int) $port], [$socket, 0]] as $server) {
        echo $binary ? "== binary" : "== text", $server[1] ? ", TCP\n" : ", socket\n";
        $m = new Memcached();
        $m->setOption(Memcached::OPT_BINARY_PROTOCOL, $binary);
        show("add", $m->addServer(...$server), count($m->getServerList()));
        basics($m);
        numbers($m, $binary);
        many($m);
        comparing($m);
        options($m);
        servers($m);
    }
}
for ($i = 0; $i < 3; $i++) {
    $m = new Memcached("pool");
    if (!count($m->getServerList())) $m->addServers([[$host, (int) $port, 1]]);
    show("persistent", $m->isPersistent(), $m->isPristine(), count($m->getServerList()), $m->set("persistent$i", $i), $m->get("persistent$i"));
    unset($m);
}
ini_set("session.save_handler", "memcached");
ini_set("session.save_path", "$host:$port");
ini_set("session.use_cookies", "0");
ini_set("session.cache_limiter", "");
session_id("abcdefghij");
session_start();
$_SESSION["visits"] = ["one", 2];
session_write_close();
$_SESSION = [];
session_start();
show("session", $_SESSION);
show("destroyed", session_destroy());
echo "OK\n";
