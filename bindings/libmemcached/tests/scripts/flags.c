/* Sets behaviours by their functions and reads them in the structure, where the headers have them. */
#include <assert.h>
#include <libmemcached/memcached.h>

int main(void) {
  memcached_st memc;
  assert(memcached_create(&memc) == &memc && !memc.options.is_allocated && memc.flags.reply && memc.query_id == 1);
#define SET(behavior, field, value)                                                                  \
  assert(memcached_behavior_set(&memc, MEMCACHED_BEHAVIOR_##behavior, value) == MEMCACHED_SUCCESS); \
  assert(memc.field == (value))
  SET(AUTO_EJECT_HOSTS, flags.auto_eject_hosts, 1);
  SET(VERIFY_KEY, flags.verify_key, 1);
  SET(BINARY_PROTOCOL, flags.binary_protocol, 1);
  assert(!memc.flags.verify_key);
  SET(BUFFER_REQUESTS, flags.buffer_requests, 1);
  SET(HASH_WITH_PREFIX_KEY, flags.hash_with_namespace, 1);
  SET(NO_BLOCK, flags.no_block, 1);
  SET(RANDOMIZE_REPLICA_READ, flags.randomize_replica_read, 1);
  SET(SUPPORT_CAS, flags.support_cas, 1);
  SET(TCP_NODELAY, flags.tcp_nodelay, 1);
  SET(SORT_HOSTS, flags.use_sort_hosts, 1);
  SET(TCP_KEEPALIVE, flags.tcp_keepalive, 1);
  SET(NUMBER_OF_REPLICAS, number_of_replicas, 2);
  SET(POLL_TIMEOUT, poll_timeout, 77);
  SET(SOCKET_RECV_SIZE, recv_size, 78);
  SET(DISTRIBUTION, distribution, MEMCACHED_DISTRIBUTION_RANDOM);
  assert(memcached_behavior_set(&memc, MEMCACHED_BEHAVIOR_NOREPLY, 1) == MEMCACHED_SUCCESS && !memc.flags.reply);
  SET(USE_UDP, flags.use_udp, 1);
  assert(!memc.flags.buffer_requests);
  SET(USE_UDP, flags.use_udp, 0);
  SET(AUTO_EJECT_HOSTS, flags.auto_eject_hosts, 0);
  assert(memcached_server_add(&memc, "localhost", 1) == MEMCACHED_SUCCESS && memc.number_of_hosts == 1 && memc.servers);
  assert(memcached_get_hashkit(&memc) == &memc.hashkit);
  assert(memc.hashkit.base_hash.function("a", 1, 0) == memcached_generate_hash_value("a", 1, MEMCACHED_HASH_DEFAULT));
  memcached_result_st result;
  assert(memcached_result_create(&memc, &result) == &result && result.options.is_initialized && !result.options.is_allocated);
  assert(result.root == &memc && result.value.string == result.value.end);
  memcached_result_free(&result);
  memcached_free(&memc);
  return 0;
}
