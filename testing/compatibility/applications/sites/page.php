<?php
/* A page of 12 cache calls, each of which checks its answer: "OK <number of this page>", or what was wrong, with status 500. */

function fail(string $why): never
{
    http_response_code(500);
    answer("WRONG $why");
    exit;
}

function answer(string $text): void
{
    header('Content-Type: text/plain');
    header('Content-Length: ' . strlen($text));
    echo $text;
}

$cache = new Memcached('pages');
if (!$cache->getServerList()) {
    $cache->setOption(Memcached::OPT_COMPRESSION, false);
    $cache->addServer($_SERVER['CACHE_HOST'], (int) $_SERVER['CACHE_PORT']);
}
$check = function (bool $right, string $what) use ($cache): void {
    $right || fail("$what: " . $cache->getResultMessage());
};
/* A value that says which key it belongs to. */
$value = fn(string $key): string => "$key|" . str_repeat('x', 128);
$user = (int) ($_GET['user'] ?? 0);

/* 1, 2: a number that no two pages get */
$check($cache->add('pages', 0) || $cache->getResultCode() === Memcached::RES_NOTSTORED, 'add pages');
$page = $cache->increment('pages');
$check(is_int($page) && $page > 0, 'increment pages');
/* 3, 4: what the page shows, made when it is not there */
$shown = $cache->get("user:$user");
$check($shown !== false || $cache->getResultCode() === Memcached::RES_NOTFOUND, 'get user');
$check($shown === false || $shown === $value("user:$user"), "user $user is not its own");
$check($cache->set("user:$user", $value("user:$user"), 3600), 'set user');
/* 5: five at once */
$names = array_map(fn(int $number): string => "user:$number", range($user, $user + 4));
$users = $cache->getMulti($names);
$check(is_array($users) && isset($users["user:$user"]), 'getMulti');
foreach ($users as $name => $text) {
    $check($text === $value($name), "$name has another's value");
}
/* 6, 7, 8: a lock that only this page has */
$check($cache->add("lock:$page", $page, 60), 'add lock');
$check(!$cache->add("lock:$page", 0, 60), 'a lock that is held is taken');
$check($cache->delete("lock:$page"), 'delete lock');
/* 9, 10: what only this worker writes */
$own = 'worker:' . getmypid();
$check($cache->set($own, $page), 'set worker');
$check($cache->get($own) === $page, 'get worker');
/* 11, 12: the lock is gone, and a longer life */
$check($cache->get("lock:$page") === false, 'a deleted lock is there');
$check($cache->touch("user:$user", 7200), 'touch');
answer("OK $page");
