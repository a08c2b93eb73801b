// Uses the npm package memcached's ordinary API widely against one server and asserts every result.
//
// Usage: node client.js HOST:PORT
'use strict';

const assert = require('assert');
const Memcached = require('memcached');

const client = new Memcached(process.argv[2], { timeout: 20000, retries: 0, poolSize: 10, maxValue: 2 << 20 });
let checks = 0;

/** A method of the client as a promise. */
function call(method, ...args) {
  return new Promise((resolve, reject) => {
    client[method](...args, (error, result) => (error ? reject(error) : resolve(result)));
  });
}

async function same(promise, due) {
  checks += 1;
  assert.deepStrictEqual(await promise, due);
}

async function rejects(promise, pattern) {
  checks += 1;
  await assert.rejects(promise, (error) => pattern.test(String(error.message || error)));
}

async function main() {
  await same(call('flush'), [true]);
  await same(call('get', 'none'), undefined);
  await same(call('set', 'a', 'täxt ☃', 1000), true);
  await same(call('get', 'a'), 'täxt ☃');
  const binary = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
  await same(call('set', 'binary', binary, 1000), true);
  await same(call('get', 'binary'), binary);
  await same(call('set', 'thing', { a: [1, null, 'x'] }, 1000), true);
  await same(call('get', 'thing'), { a: [1, null, 'x'] });
  await same(call('set', 'number', 42, 1000), true);
  await same(call('get', 'number'), 42);

  await rejects(call('add', 'a', 'x', 0), /not stored/);
  await same(call('add', 'b', 'x', 0), true);
  await same(call('replace', 'b', 'y', 0), true);
  await rejects(call('replace', 'none', 'y', 0), /not stored/);
  await same(call('append', 'b', '+'), true);
  await same(call('prepend', 'b', '-'), true);
  await same(call('get', 'b'), '-y+');
  await rejects(call('append', 'none', '+'), /not stored/);
  await same(call('del', 'b'), true);
  await same(call('del', 'b'), false);

  const gets = await call('gets', 'a');
  assert.strictEqual(gets.a, 'täxt ☃');
  await same(call('cas', 'a', 'new', gets.cas, 0), true);
  await same(call('cas', 'a', 'newer', gets.cas, 0), false);
  await same(call('get', 'a'), 'new');

  await same(call('set', 'n', '10', 0), true);
  await same(call('incr', 'n', 5), 15);
  await same(call('decr', 'n', 20), 0);
  await same(call('incr', 'none', 1), false);
  await same(call('touch', 'n', 100), true);
  await same(call('touch', 'none', 100), false);
  await same(call('set', 'gone', 'x', -1), true);
  await same(call('get', 'gone'), undefined);

  const keys = Array.from({ length: 500 }, (_, n) => `many:${n}`);
  await Promise.all(keys.map((key) => same(call('set', key, key, 100), true)));
  const found = await call('getMulti', keys.concat(['none']));
  assert.deepStrictEqual(found, Object.fromEntries(keys.map((key) => [key, key])));
  checks += 1;

  const large = 'L'.repeat(1000000);
  await same(call('set', 'large', large, 0), true);
  await same(call('get', 'large'), large);
  await same(call('set', 'k'.repeat(250), 'x', 0), true);
  await same(call('get', 'k'.repeat(250)), 'x');

  // One key many times, for as long as a server needs to see that it is hot.
  for (const hot of ['one', 'another']) {
    await same(call('set', 'hot', hot, 0), true);
    for (let i = 0; i < 200; i += 1) {
      await same(call('get', 'hot'), hot);
      await new Promise((done) => setTimeout(done, 1));
    }
  }

  const version = await call('version');
  assert.ok(version[0].version, 'a version');
  const stats = await call('stats');
  assert.ok(stats[0].curr_items > 0 && stats[0].threads > 0, 'stats');
  const settings = await call('settings');
  assert.ok(settings[0].maxbytes > 0, 'settings');
  assert.ok((await call('slabs')).length === 1, 'slabs');
  assert.ok((await call('items')).length === 1, 'items');
  checks += 5;
  await same(call('flush'), [true]);
  await same(call('get', 'a'), undefined);
  // last, because this client gives a server up that answers with SERVER_ERROR
  await same(call('set', 'large', 'L'.repeat(1048577), 0), false);
  client.end();
  console.log(`OK: ${checks} checks`);
  // and then watches for it to come back
  process.exit(0);
}

main().catch((error) => {
  console.error('FAILED:', error);
  process.exit(1);
});
