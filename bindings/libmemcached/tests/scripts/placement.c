// Which server has a key, after every order of up to four of the calls that set a handle up.
//   placement EVERY TIMES print HOST PORT PORT PORT   prints it, for each EVERYth order, made TIMES times
//   placement EVERY TIMES store HOST PORT PORT PORT   stores the keys there
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 24 };
static const char *host;
static in_port_t ports[3];
static int stores;
static unsigned orders, every, times;
static const uint32_t weights[] = {1, 4, 7};

static void add_servers(memcached_st *memc) {
  for (int i = 0; i < 3; i++) memcached_server_add_with_weight(memc, host, ports[2 - i], weights[i]);
}

// Each may give another handle.
static memcached_st *consistent(memcached_st *m) { memcached_behavior_set(m, MEMCACHED_BEHAVIOR_DISTRIBUTION, MEMCACHED_DISTRIBUTION_CONSISTENT); return m; }
static memcached_st *spy(memcached_st *m) { memcached_behavior_set_distribution(m, MEMCACHED_DISTRIBUTION_CONSISTENT_KETAMA_SPY); return m; }
static memcached_st *modula(memcached_st *m) { memcached_behavior_set(m, MEMCACHED_BEHAVIOR_KETAMA, 0); return m; }
static memcached_st *ketama(memcached_st *m) { memcached_behavior_set(m, MEMCACHED_BEHAVIOR_KETAMA, 1); return m; }
static memcached_st *compat(memcached_st *m) { memcached_behavior_set(m, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1); return m; }
static memcached_st *key_hash(memcached_st *m) { memcached_behavior_set(m, MEMCACHED_BEHAVIOR_HASH, MEMCACHED_HASH_FNV1A_32); return m; }
static memcached_st *ketama_hash(memcached_st *m) { memcached_behavior_set(m, MEMCACHED_BEHAVIOR_KETAMA_HASH, MEMCACHED_HASH_CRC); return m; }
static memcached_st *kit(memcached_st *m) {
  hashkit_st kit;
  hashkit_create(&kit);
  hashkit_set_function(&kit, HASHKIT_HASH_MURMUR);
  hashkit_set_distribution_function(&kit, HASHKIT_HASH_JENKINS);
  memcached_set_hashkit(m, &kit);
  hashkit_free(&kit);
  return m;
}
static memcached_st *added(memcached_st *m) { add_servers(m); return m; }
static memcached_st *pushed(memcached_st *m) {
  memcached_server_st *list = NULL;
  memcached_return_t rc;
  for (int i = 0; i < 3; i++) list = memcached_server_list_append_with_weight(list, host, ports[(i + 1) % 3], weights[i], &rc);
  memcached_server_push(m, list);
  memcached_server_list_free(list);
  return m;
}
static memcached_st *sorted(memcached_st *m) { memcached_behavior_set(m, MEMCACHED_BEHAVIOR_SORT_HOSTS, 1); return m; }
static memcached_st *prefixed(memcached_st *m) {
  memcached_callback_set(m, MEMCACHED_CALLBACK_PREFIX_KEY, "space:");
  memcached_behavior_set(m, MEMCACHED_BEHAVIOR_HASH_WITH_PREFIX_KEY, 1);
  return m;
}
static memcached_st *removed(memcached_st *m) { memcached_servers_reset(m); return m; }
static memcached_st *buckets(memcached_st *m) {
  uint32_t map[] = {2, 0, 1, 1};
  memcached_bucket_set(m, map, NULL, 4, 0);
  return m;
}
static memcached_st *cloned(memcached_st *m) {
  memcached_st *clone = memcached_clone(NULL, m);
  memcached_free(m);
  return clone;
}
static struct { const char *name; memcached_st *(*make)(memcached_st *); } calls[] = {
  {"consistent", consistent}, {"spy", spy}, {"modula", modula}, {"ketama", ketama}, {"compat", compat}, {"hash", key_hash},
  {"ketama-hash", ketama_hash}, {"kit", kit}, {"add", added}, {"push", pushed}, {"sort", sorted}, {"prefix", prefixed}, {"remove", removed},
  {"buckets", buckets}, {"clone", cloned},
};
enum { CALLS = sizeof(calls) / sizeof(*calls) };

static unsigned long long behaviors(memcached_st *memc) {
  int asked[] = {MEMCACHED_BEHAVIOR_DISTRIBUTION, MEMCACHED_BEHAVIOR_KETAMA, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, MEMCACHED_BEHAVIOR_HASH,
                 MEMCACHED_BEHAVIOR_KETAMA_HASH, MEMCACHED_BEHAVIOR_SORT_HOSTS};
  unsigned long long all = 0;
  for (unsigned i = 0; i < sizeof(asked) / sizeof(*asked); i++) all = all * 16 + memcached_behavior_get(memc, asked[i]);
  return all;
}

static void one(const int *order, int count) {
  if (orders++ % every) return;
  memcached_st *memc = memcached_create(NULL);
  if (times > 1) add_servers(memc);
  for (unsigned i = 0; i < times * count; i++) memc = calls[order[i % count]].make(memc);
  if (memcached_server_count(memc) < 3) add_servers(memc);
  char key[40], places[KEYS + 1] = "";
  unsigned long long before = behaviors(memc);
  for (int i = 0; i < KEYS; i++) {
    memcached_return_t rc = MEMCACHED_SUCCESS;
    size_t length = snprintf(key, sizeof(key), stores ? "k%d-%u" : "k%d", i, orders);
    if (stores) {
      rc = memcached_set(memc, key, length, "", 0, 0, 0);
      printf("%s %s %lu\n", memcached_strerror(memc, rc), key, (unsigned long) memcached_query_id(memc));
      continue;
    }
    const memcached_instance_st *server = memcached_server_by_key(memc, key, length, &rc);
    uint32_t position = memcached_generate_hash(memc, key, length);
    places[i] = rc || server != memcached_server_instance_by_position(memc, position) ? '!' : '0' + (memcached_server_port(server) == ports[1]) + 2 * (memcached_server_port(server) == ports[2]);
  }
  for (int i = 0; i < count; i++) printf("%s ", calls[order[i]].name);
  printf("%s %llx %llx %lu\n", places, before, behaviors(memc), (unsigned long) memcached_query_id(memc));
  memcached_free(memc);
}

static void all(int *order, int count) {
  one(order, count);
  for (int next = 0; next < CALLS && count < 4; next++) {
    int twice = 0;
    for (int i = 0; i < count; i++) twice |= order[i] == next;
    order[count] = next;
    if (!twice) all(order, count + 1);
  }
}

int main(int argc, char **argv) {
  if (argc != 8) return 2;
  every = atoi(argv[1]);
  times = atoi(argv[2]);
  stores = !strcmp(argv[3], "store");
  host = argv[4];
  for (int i = 0; i < 3; i++) ports[i] = atoi(argv[5 + i]);
  int order[4];
  all(order, 0);
  return 0;
}
