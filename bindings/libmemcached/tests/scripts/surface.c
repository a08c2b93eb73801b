/* Uses the whole surface of libmemcached and prints every answer: the same must come out with Debian's libmemcached against a
 * memcached and with the drop-in on a region. What differs by nature (addresses, times, counts) is not printed. */
#include <libmemcached/memcached.h>
#include <libmemcached/util.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *host;
static in_port_t port;
static const char *unix_socket;

#define RC(call) printf("%s: %s\n", #call, memcached_strerror(NULL, (call)))
#define NUMBER(call) printf("%s: %llu\n", #call, (unsigned long long) (call))
#define LEN(key) key, strlen(key)

static void show_get(memcached_st *memc, const char *key) {
  size_t length = 77;
  uint32_t flags = 77;
  memcached_return_t rc;
  char *value = memcached_get(memc, LEN(key), &length, &flags, &rc);
  printf("get %s: %s, %zu, %u, %s\n", key, memcached_strerror(memc, rc), length, flags, value ? value : "NULL");
  free(value);
}

static memcached_return_t print_item(const memcached_st *memc, memcached_result_st *result, void *context) {
  (void) memc;
  ++*(int *) context;
  printf("  item %.*s = %.*s, %u\n", (int) memcached_result_key_length(result), memcached_result_key_value(result),
         (int) memcached_result_length(result), memcached_result_value(result), memcached_result_flags(result));
  return MEMCACHED_SUCCESS;
}

static memcached_return_t count_server(const memcached_st *memc, const memcached_instance_st *server, void *context) {
  (void) memc;
  ++*(int *) context;
  printf("  server %s, %s, version %s\n", memcached_server_name(server), memcached_server_type(server),
         memcached_server_major_version(server) == 255 ? "unknown" : "known");
  return MEMCACHED_SUCCESS;
}

static memcached_return_t see_stat(const memcached_instance_st *server, const char *key, size_t key_length, const char *value,
                                   size_t value_length, void *context) {
  (void) server;
  if (key_length == 3 && !strcmp(key, "pid") && value_length == strlen(value)) ++*(int *) context;
  return MEMCACHED_SUCCESS;
}

static memcached_return_t see_key(const memcached_st *memc, const char *key, size_t key_length, void *context) {
  (void) memc;
  if (strlen(key) == key_length && strstr(key, "dump-")) ++*(int *) context;
  return MEMCACHED_SUCCESS;
}

static memcached_return_t make_good(const memcached_st *memc, const char *key, size_t key_length, memcached_result_st *result) {
  (void) memc;
  if (strncmp(key, "made-", 5)) return MEMCACHED_NOTFOUND;
  memcached_result_set_value(result, key, key_length);
  memcached_result_set_flags(result, 9);
  return MEMCACHED_SUCCESS;
}

static int deletes;
static memcached_return_t on_delete(const memcached_st *memc, const char *key, size_t key_length) {
  (void) memc; (void) key; (void) key_length;
  deletes++;
  return MEMCACHED_SUCCESS;
}

static int clones, cleanups;
static memcached_return_t on_clone(memcached_st *to, const memcached_st *from) { (void) to; (void) from; clones++; return MEMCACHED_SUCCESS; }
static memcached_return_t on_cleanup(const memcached_st *memc) { (void) memc; cleanups++; return MEMCACHED_SUCCESS; }

static long blocks;
static void *my_malloc(const memcached_st *m, const size_t size, void *c) { (void) m; (void) c; blocks++; return malloc(size); }
static void my_free(const memcached_st *m, void *b, void *c) { (void) m; (void) c; if (b) blocks--; free(b); }
static void *my_realloc(const memcached_st *m, void *b, const size_t size, void *c) { (void) m; (void) c; if (!b) blocks++; return realloc(b, size); }
static void *my_calloc(const memcached_st *m, size_t n, const size_t size, void *c) { (void) m; (void) c; blocks++; return calloc(n, size); }

static void storing(memcached_st *memc) {
  puts("== storing");
  RC(memcached_set(memc, LEN("a"), LEN("one"), 0, 1));
  show_get(memc, "a");
  RC(memcached_add(memc, LEN("a"), LEN("two"), 0, 2));
  RC(memcached_add(memc, LEN("b"), LEN("two"), 0, 2));
  RC(memcached_replace(memc, LEN("a"), LEN("three"), 0, 3));
  RC(memcached_replace(memc, LEN("none"), LEN("three"), 0, 3));
  RC(memcached_append(memc, LEN("a"), LEN("+"), 0, 4));
  RC(memcached_prepend(memc, LEN("a"), LEN("-"), 0, 5));
  RC(memcached_append(memc, LEN("none"), LEN("+"), 0, 0));
  RC(memcached_prepend(memc, LEN("none"), LEN("+"), 0, 0));
  show_get(memc, "a");
  show_get(memc, "b");
  show_get(memc, "none");
  RC(memcached_set(memc, LEN("empty"), NULL, 0, 0, 6));
  show_get(memc, "empty");
  RC(memcached_set_by_key(memc, LEN("group"), LEN("c"), LEN("grouped"), 0, 7));
  RC(memcached_add_by_key(memc, LEN("group"), LEN("c"), LEN("x"), 0, 0));
  RC(memcached_replace_by_key(memc, LEN("group"), LEN("c"), LEN("again"), 0, 8));
  RC(memcached_append_by_key(memc, LEN("group"), LEN("c"), LEN("+"), 0, 0));
  RC(memcached_prepend_by_key(memc, LEN("group"), LEN("c"), LEN("-"), 0, 0));
  size_t length;
  uint32_t flags;
  memcached_return_t rc;
  char *value = memcached_get_by_key(memc, LEN("group"), LEN("c"), &length, &flags, &rc);
  printf("get_by_key: %s %zu %u %s\n", memcached_strerror(memc, rc), length, flags, value);
  free(value);
  RC(memcached_delete(memc, LEN("b"), 0));
  RC(memcached_delete(memc, LEN("b"), 0));
  RC(memcached_delete(memc, LEN("a"), 5));
  RC(memcached_delete_by_key(memc, LEN("group"), LEN("c"), 0));
  RC(memcached_exist(memc, LEN("a")));
  RC(memcached_exist(memc, LEN("absent")));
  RC(memcached_exist_by_key(memc, LEN("group"), LEN("a")));
  show_get(memc, "absent");
  RC(memcached_touch(memc, LEN("a"), 100));
  RC(memcached_touch(memc, LEN("absent"), 100));
  RC(memcached_touch_by_key(memc, LEN("group"), LEN("a"), 0));
  // An expiration has 32 bits on its way to a server, and a sign in the text protocol only.
  const time_t odd[] = {-1, 4294967295, 4294967296, 3000000000, 8589934594, 4294967295 + 101};
  for (size_t i = 0; i < sizeof(odd) / sizeof(*odd); i++) {
    RC(memcached_set(memc, LEN("odd"), LEN("x"), odd[i], 0));
    RC(memcached_exist(memc, LEN("odd")));
    RC(memcached_set(memc, LEN("odd"), LEN("x"), 0, 0));
    RC(memcached_touch(memc, LEN("odd"), odd[i]));
    RC(memcached_exist(memc, LEN("odd")));
    RC(memcached_replace(memc, LEN("odd"), LEN("x"), odd[i], 0));
    RC(memcached_exist(memc, LEN("odd")));
    RC(memcached_delete(memc, LEN("odd"), 0));
    uint64_t odd_number = 0;
    RC(memcached_increment_with_initial(memc, LEN("odd"), 1, 5, odd[i], &odd_number));
    RC(memcached_exist(memc, LEN("odd")));
  }
  RC(memcached_set(memc, LEN("gone"), LEN("x"), (time_t) 1000000000, 0));
  show_get(memc, "gone");
  RC(memcached_set(memc, LEN("later"), LEN("x"), time(NULL) + 1000, 0));
  show_get(memc, "later");
  char *large = calloc(1, 2 << 20);
  RC(memcached_set(memc, LEN("large"), large, 2 << 20, 0, 0));
  show_get(memc, "large");
  memset(large, 'l', 900000);
  RC(memcached_set(memc, LEN("large"), large, 900000, 0, 0));
  value = memcached_get(memc, LEN("large"), &length, &flags, &rc);
  printf("large: %s %zu %d\n", memcached_strerror(memc, rc), length, value && !memcmp(value, large, length) && !value[length]);
  free(value);
  free(large);
}

static void keys(memcached_st *memc) {
  puts("== keys");
  char key[300];
  memset(key, 'k', sizeof(key));
  RC(memcached_set(memc, key, 250, LEN("x"), 0, 0));
  RC(memcached_set(memc, key, 251, LEN("x"), 0, 0));
  RC(memcached_set(memc, key, 0, LEN("x"), 0, 0));
  NUMBER(memcached_last_error(memc));
  NUMBER(memcached_last_error_errno(memc));
  printf("message: %s\n", strchr(memcached_last_error_message(memc), ')') ? "has an address" : memcached_last_error_message(memc));
  RC(memcached_delete(memc, key, 0, 0));
  RC(memcached_touch(memc, key, 251, 0));
  uint64_t number = 5;
  RC(memcached_increment(memc, key, 0, 1, &number));
  NUMBER(number);
  size_t length = 5;
  memcached_return_t rc;
  uint32_t flags = 5;
  char *value = memcached_get(memc, key, 251, &length, &flags, &rc);
  printf("get: %s %zu %u %p\n", memcached_strerror(memc, rc), length, flags, (void *) value);
  const char *list[] = {"a", key};
  size_t lengths[] = {1, 251};
  RC(memcached_mget(memc, list, lengths, 2));
  RC(memcached_mget(memc, list, lengths, 0));
  RC(memcached_mget(memc, NULL, lengths, 1));
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_VERIFY_KEY, 1));
  if (memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_VERIFY_KEY)) RC(memcached_set(memc, LEN("a b"), LEN("x"), 0, 0));
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_VERIFY_KEY, 0);
}

static void counting(memcached_st *memc) {
  puts("== counting");
  uint64_t number = 0;
  RC(memcached_increment(memc, LEN("n"), 1, &number));
  NUMBER(number);
  RC(memcached_set(memc, LEN("n"), LEN("10"), 0, 0));
  RC(memcached_increment(memc, LEN("n"), 5, &number));
  NUMBER(number);
  RC(memcached_decrement(memc, LEN("n"), 3, &number));
  NUMBER(number);
  RC(memcached_decrement(memc, LEN("n"), 100, &number));
  NUMBER(number);
  RC(memcached_increment_by_key(memc, LEN("group"), LEN("n"), 18446744073709551615ULL, &number));
  NUMBER(number);
  RC(memcached_increment_by_key(memc, LEN("group"), LEN("n"), 3, &number));
  NUMBER(number);
  RC(memcached_decrement_by_key(memc, LEN("group"), LEN("n"), 1, &number));
  NUMBER(number);
  RC(memcached_increment(memc, LEN("n"), 1, NULL));
  RC(memcached_set(memc, LEN("text"), LEN("abc"), 0, 0));
  RC(memcached_increment(memc, LEN("text"), 1, &number));
  NUMBER(number);
  NUMBER(memcached_last_error(memc));
  RC(memcached_increment_with_initial(memc, LEN("i"), 2, 50, 0, &number));
  NUMBER(number);
  RC(memcached_increment_with_initial(memc, LEN("i"), 2, 50, 0, &number));
  NUMBER(number);
  RC(memcached_decrement_with_initial(memc, LEN("j"), 2, 7, MEMCACHED_EXPIRATION_NOT_ADD, &number));
  NUMBER(number);
  RC(memcached_decrement_with_initial_by_key(memc, LEN("group"), LEN("j"), 2, 7, 100, &number));
  NUMBER(number);
  RC(memcached_increment_with_initial_by_key(memc, LEN("group"), LEN("j"), 2, 7, 100, &number));
  NUMBER(number);
}

static void fetching(memcached_st *memc) {
  puts("== fetching");
  const char *list[] = {"m1", "m2", "m3", "m4"};
  size_t lengths[] = {2, 2, 2, 2};
  RC(memcached_set(memc, LEN("m1"), LEN("first"), 0, 1));
  RC(memcached_set(memc, LEN("m3"), LEN("third"), 0, 3));
  RC(memcached_set(memc, LEN("m4"), NULL, 0, 0, 4));
  memcached_return_t rc;
  RC(memcached_mget(memc, list, lengths, 4));
  char key[MEMCACHED_MAX_KEY];
  size_t key_length, length;
  uint32_t flags;
  char *value;
  memset(key, 0, sizeof(key));
  for (int i = 0; i < 5; i++) {
    key_length = 0;
    value = memcached_fetch(memc, key, &key_length, &length, &flags, &rc);
    printf("fetch: %s %.*s %zu %u %s\n", memcached_strerror(memc, rc), (int) key_length, key, length, flags, value ? value : "NULL");
    free(value);
  }
  RC(memcached_mget(memc, list, lengths, 4));
  memcached_result_st mine;
  memcached_result_create(memc, &mine);
  while (memcached_fetch_result(memc, &mine, &rc)) {
    int count = 0;
    print_item(memc, &mine, &count);
    printf("  cas %s\n", memcached_result_cas(&mine) ? "told" : "none");
  }
  printf("end: %s\n", memcached_strerror(memc, rc));
  memcached_result_free(&mine);
  RC(memcached_mget_by_key(memc, LEN("group"), list, lengths, 3));
  memcached_result_st *theirs;
  while ((theirs = memcached_fetch_result(memc, NULL, &rc))) {
    int count = 0;
    print_item(memc, theirs, &count);
    memcached_result_free(theirs);
  }
  printf("end: %s\n", memcached_strerror(memc, rc));
  RC(memcached_mget(memc, list + 1, lengths, 1));
  theirs = memcached_fetch_result(memc, NULL, &rc);
  printf("nothing: %s %d\n", memcached_strerror(memc, rc), theirs != NULL);
  memcached_execute_fn callbacks[] = {print_item};
  int count = 0;
  RC(memcached_mget(memc, list, lengths, 4));
  RC(memcached_fetch_execute(memc, callbacks, &count, 1));
  NUMBER(count);
  RC(memcached_mget(memc, list + 1, lengths, 1));
  RC(memcached_fetch_execute(memc, callbacks, &count, 1));
  count = 0;
  RC(memcached_mget_execute(memc, list, lengths, 4, callbacks, &count, 1));
  NUMBER(count);
  RC(memcached_fetch_execute(memc, callbacks, &count, 1));
  NUMBER(count);
  RC(memcached_mget_execute_by_key(memc, LEN("group"), list, lengths, 4, callbacks, &count, 1));
  RC(memcached_fetch_execute(memc, callbacks, &count, 1));
  NUMBER(count);
  /* a request that is not fetched is forgotten */
  RC(memcached_mget(memc, list, lengths, 4));
  show_get(memc, "m1");
  count = 0;
  RC(memcached_mget(memc, list, lengths, 1));
  RC(memcached_fetch_execute(memc, callbacks, &count, 1));
  NUMBER(count);
}

static void comparing(memcached_st *memc) {
  puts("== cas");
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  RC(memcached_set(memc, LEN("x"), LEN("v1"), 0, 0));
  const char *list[] = {"x"};
  size_t lengths[] = {1};
  memcached_return_t rc;
  memcached_mget(memc, list, lengths, 1);
  memcached_result_st *result = memcached_fetch_result(memc, NULL, &rc);
  uint64_t cas = memcached_result_cas(result);
  printf("cas is told: %d\n", cas != 0);
  memcached_result_free(result);
  while ((result = memcached_fetch_result(memc, NULL, &rc))) memcached_result_free(result);
  RC(memcached_cas(memc, LEN("x"), LEN("v2"), 0, 0, cas));
  RC(memcached_cas(memc, LEN("x"), LEN("v3"), 0, 0, cas));
  RC(memcached_cas_by_key(memc, LEN("group"), LEN("x"), LEN("v4"), 0, 0, cas + 1000000));
  RC(memcached_cas(memc, LEN("nothing"), LEN("v2"), 0, 0, cas));
  show_get(memc, "x");
  /* 0 is no CAS unique. The text protocol's server answers twice, so that connection is given up. */
  RC(memcached_cas(memc, LEN("x"), LEN("v5"), 0, 0, 0));
  memcached_quit(memc);
  RC(memcached_cas_by_key(memc, LEN("group"), LEN("nothing"), LEN("v6"), 0, 0, 0));
  memcached_quit(memc);
  RC(memcached_cas(memc, LEN(""), LEN("v7"), 0, 0, 0));
  show_get(memc, "x");
  show_get(memc, "nothing");
}

static void servers(void) {
  puts("== servers");
  memcached_return_t rc;
  memcached_server_st *list = memcached_server_list_append(NULL, "one", 0, &rc);
  list = memcached_server_list_append_with_weight(list, "/two", 5, 3, &rc);
  list = memcached_server_list_append(list, NULL, 12, &rc);
  NUMBER(memcached_server_list_count(list));
  for (uint32_t i = 0; i < memcached_server_list_count(list); i++)
    printf("  %s %u %u %d\n", list[i].hostname, list[i].port, list[i].weight, (int) list[i].type);
  memcached_server_list_free(list);
  list = memcached_servers_parse("a:1, b:2:3,c,[::1]:4,/x/y,d:5 6");
  for (uint32_t i = 0; i < memcached_server_list_count(list); i++)
    printf("  %s %u %u %d\n", list[i].hostname, list[i].port, list[i].weight, (int) list[i].type);
  memcached_st *memc = memcached_create(NULL);
  NUMBER(memcached_server_count(memc));
  RC(memcached_set(memc, LEN("k"), LEN("v"), 0, 0));
  RC(memcached_last_error(memc));
  RC(memcached_server_push(memc, list));
  memcached_server_list_free(list);
  NUMBER(memcached_server_count(memc));
  for (uint32_t i = 0; i < memcached_server_count(memc); i++) {
    const memcached_instance_st *server = memcached_server_instance_by_position(memc, i);
    printf("  %s %u %s %u\n", memcached_server_name(server), memcached_server_port(server), memcached_server_type(server),
           memcached_server_response_count(server));
  }
  RC(memcached_server_add_udp(memc, "x", 1));
  memcached_servers_reset(memc);
  NUMBER(memcached_server_count(memc));
  RC(memcached_server_add(memc, NULL, 0));
  RC(memcached_server_add_with_weight(memc, "x", 7, 2));
  RC(memcached_server_add_unix_socket(memc, "/s"));
  RC(memcached_server_add_unix_socket_with_weight(memc, "/t", 4));
  RC(memcached_server_add_unix_socket(memc, ""));
  int count = 0;
  memcached_server_fn callbacks[] = {count_server};
  RC(memcached_server_cursor(memc, callbacks, &count, 1));
  NUMBER(count);
  printf("last disconnect: %d\n", memcached_server_get_last_disconnect(memc) != NULL);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SORT_HOSTS, 1);
  memcached_server_cursor(memc, callbacks, &count, 1);
  for (int i = 0; i < 6; i++) {
    char key[8];
    snprintf(key, sizeof(key), "key%d", i);
    printf("  %s: %u, %s\n", key, memcached_generate_hash(memc, LEN(key)), memcached_server_name(memcached_server_by_key(memc, LEN(key), &rc)));
  }
  memcached_free(memc);
}

static void behaviors(void) {
  puts("== behaviours");
  memcached_st onstack;
  memcached_st *memc = memcached_create(&onstack);
  for (int i = 0; i < MEMCACHED_BEHAVIOR_MAX; i++) {
    if (i == MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE || i == MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE || i == MEMCACHED_BEHAVIOR_USE_UDP) continue;
    printf("%s: %lld", libmemcached_string_behavior(i), (long long) memcached_behavior_get(memc, i));
    memcached_return_t rc = memcached_behavior_set(memc, i, 1);
    printf(" %s", memcached_strerror(memc, rc));
    printf(" %lld\n", (long long) memcached_behavior_get(memc, i));
  }
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SERVER_FAILURE_LIMIT, 0));
  RC(memcached_behavior_set_distribution(memc, MEMCACHED_DISTRIBUTION_CONSISTENT_WEIGHTED));
  NUMBER(memcached_behavior_get_distribution(memc));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED));
  RC(memcached_behavior_set_distribution(memc, 99));
  for (int i = 0; i <= MEMCACHED_HASH_MAX; i++) {
    printf("%s", libmemcached_string_hash(i));
    if (i == MEMCACHED_HASH_MAX) { puts(""); break; }
    printf(" %s", memcached_strerror(memc, memcached_behavior_set_key_hash(memc, i)));
    printf(" %u", memcached_behavior_get_key_hash(memc));
    if (i != MEMCACHED_HASH_HSIEH && i < MEMCACHED_HASH_CUSTOM)
      for (const char *key = "\xe4\xf6 twenty seven bytes of text"; *key; key += 1 + strlen(key) / 6)
        printf(" %08x", memcached_generate_hash_value(LEN(key), i));
    puts("");
  }
  RC(memcached_behavior_set_distribution_hash(memc, MEMCACHED_HASH_CRC));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_KETAMA_HASH));
  for (int i = 0; i <= MEMCACHED_DISTRIBUTION_CONSISTENT_MAX; i++) puts(libmemcached_string_distribution(i));
  for (int i = -1; i < 51; i++) printf("%d %s\n", i, memcached_strerror(memc, i));
  uint32_t map[] = {0, 1};
  RC(memcached_bucket_set(memc, map, NULL, 2, 0));
  RC(memcached_bucket_set(memc, NULL, NULL, 2, 0));
  puts(memcached_lib_version());
  memcached_free(memc);
  memc = memcached_create(NULL);
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_USE_UDP, 1));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_NOREPLY));
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, 0));
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1));
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE, 4096));
  NUMBER(memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE));
  memcached_free(memc);
}

static void callbacks(memcached_st *memc) {
  puts("== callbacks");
  memcached_return_t rc;
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_PREFIX_KEY, "ns-"));
  printf("%s\n", (char *) memcached_callback_get(memc, MEMCACHED_CALLBACK_PREFIX_KEY, &rc));
  RC(memcached_set(memc, LEN("p"), LEN("prefixed"), 0, 0));
  show_get(memc, "p");
  RC(memcached_set(memc, LEN("q"), LEN("prefixed too"), 0, 0));
  const char *list[] = {"p", "none", "q"};
  size_t lengths[] = {1, 4, 1};
  RC(memcached_mget(memc, list, lengths, 3));
  memcached_execute_fn functions[] = {print_item};
  int count = 0;
  memcached_fetch_execute(memc, functions, &count, 1);
  char long_key[260];
  memset(long_key, 'x', sizeof(long_key));
  memcached_set(memc, long_key, 247, LEN("fits"), 0, 0);
  long_key[247] = 0;
  show_get(memc, long_key);
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_PREFIX_KEY, ""));
  memset(long_key, 'n', sizeof(long_key));
  long_key[200] = 0;
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_PREFIX_KEY, long_key));
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_NAMESPACE, "a b"));
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_PREFIX_KEY, NULL));
  show_get(memc, "ns-p");
  show_get(memc, "p");
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_GET_FAILURE, *(void **) &(memcached_trigger_key_fn){make_good}));
  show_get(memc, "made-here");
  show_get(memc, "not-made");
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_GET_FAILURE, NULL));
  show_get(memc, "made-here");
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_DELETE_TRIGGER, *(void **) &(memcached_trigger_delete_key_fn){on_delete}));
  RC(memcached_delete(memc, LEN("made-here"), 0));
  RC(memcached_delete(memc, LEN("made-here"), 0));
  NUMBER(deletes);
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_DELETE_TRIGGER, NULL));
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_USER_DATA, memc));
  printf("user data: %d %d\n", memcached_callback_get(memc, MEMCACHED_CALLBACK_USER_DATA, &rc) == memc, memcached_get_user_data(memc) == memc);
  printf("user data: %d\n", memcached_set_user_data(memc, NULL) == memc);
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_CLONE_FUNCTION, *(void **) &(memcached_clone_fn){on_clone}));
  RC(memcached_callback_set(memc, MEMCACHED_CALLBACK_CLEANUP_FUNCTION, *(void **) &(memcached_cleanup_fn){on_cleanup}));
  memcached_st *copy = memcached_clone(NULL, memc);
  RC(memcached_set(copy, LEN("from-clone"), LEN("yes"), 0, 0));
  memcached_free(copy);
  printf("clones %d, cleanups %d\n", clones, cleanups);
  memcached_callback_set(memc, MEMCACHED_CALLBACK_CLONE_FUNCTION, NULL);
  memcached_callback_set(memc, MEMCACHED_CALLBACK_CLEANUP_FUNCTION, NULL);
  show_get(memc, "from-clone");
}

static void memory(void) {
  puts("== memory");
  memcached_st onstack;
  memcached_st *memc = memcached_create(&onstack);
  RC(memcached_set_memory_allocators(memc, my_malloc, my_free, my_realloc, NULL, NULL));
  RC(memcached_set_memory_allocators(memc, my_malloc, my_free, my_realloc, my_calloc, &blocks));
  printf("context: %d\n", memcached_get_memory_allocators_context(memc) == &blocks);
  memcached_malloc_fn m; memcached_free_fn f; memcached_realloc_fn r; memcached_calloc_fn c;
  memcached_get_memory_allocators(memc, &m, &f, &r, &c);
  printf("%d\n", m == my_malloc && f == my_free && r == my_realloc && c == my_calloc);
  memcached_server_add(memc, host, port);
  memcached_set(memc, LEN("mem"), LEN("value"), 0, 0);
  size_t length;
  uint32_t flags;
  memcached_return_t rc;
  long before = blocks;
  char *value = memcached_get(memc, LEN("mem"), &length, &flags, &rc);
  printf("a value is one block of mine: %d\n", blocks > before);
  my_free(memc, value, NULL);
  memcached_result_st *result = memcached_result_create(memc, NULL);
  RC(memcached_result_set_value(result, "abc", 3));
  RC(memcached_result_set_value(result, "def", 3));
  printf("%.*s %zu\n", (int) memcached_result_length(result), memcached_result_value(result), memcached_result_length(result));
  memcached_result_set_expiration(result, 5);
  value = memcached_result_take_value(result);
  printf("%s\n", value);
  my_free(memc, value, NULL);
  memcached_result_reset(result);
  memcached_result_free(result);
  memcached_free(memc);
  printf("%d\n", blocks <= 0);
}

static void asking(memcached_st *memc, int binary) {
  puts("== asking servers");
  RC(memcached_version(memc));
  int count = 0;
  memcached_server_fn functions[] = {count_server};
  memcached_server_cursor(memc, functions, &count, 1);
  printf("%d\n", libmemcached_util_version_check(memc, 1, 4, 0));
  printf("%d\n", libmemcached_util_version_check(memc, 9, 0, 0));
  memcached_return_t rc;
  memcached_stat_st *stat = memcached_stat(memc, NULL, &rc);
  printf("stat: %s, pid %d, threads %lu, limit %llu, version %d\n", memcached_strerror(memc, rc), stat->pid > 0, stat->threads,
         stat->limit_maxbytes, stat->version[0] == '1');
  char **keys = memcached_stat_get_keys(memc, stat, &rc);
  for (int i = 0; keys[i]; i++) {
    char *value = memcached_stat_get_value(memc, stat, keys[i], &rc);
    printf("%s %s %d\n", keys[i], memcached_strerror(memc, rc), value && *value);
    free(value);
  }
  free(keys);
  printf("%d\n", memcached_stat_get_value(memc, stat, "nothing", &rc) == NULL);
  RC(rc);
  memcached_analysis_st *analysis = memcached_analyze(memc, stat, &rc);
  printf("analysis: %s %d %u %u\n", memcached_strerror(memc, rc), analysis->average_item_size > 0, analysis->oldest_server, analysis->least_free_server);
  memcached_analyze_free(analysis);
  memcached_stat_free(memc, stat);
  memcached_stat_st single;
  RC(memcached_stat_servername(&single, NULL, host, port));
  printf("%d\n", single.pid > 0);
  count = 0;
  RC(memcached_stat_execute(memc, NULL, see_stat, &count));
  NUMBER(count);
  RC(memcached_stat_execute(memc, "settings", see_stat, &count));
  RC(memcached_verbosity(memc, 0));
  RC(memcached_flush_buffers(memc));
  if (!binary) {
    for (int i = 0; i < 3; i++) {
      char key[16];
      snprintf(key, sizeof(key), "dump-%d", i);
      memcached_set(memc, LEN(key), LEN("x"), 0, 0);
    }
  }
  memcached_dump_fn dumps[] = {see_key};
  count = 0;
  rc = memcached_dump(memc, dumps, &count, 1);
  /* how many it tells is the server's secret: a memcached leaves out what is new */
  printf("dump: %s\n", memcached_strerror(memc, rc));
  printf("ping: %d\n", libmemcached_util_ping(host, port, &rc));
  RC(rc);
  printf("ping2: %d\n", libmemcached_util_ping2(host, port, NULL, NULL, &rc));
  printf("pid: %d %d\n", libmemcached_util_getpid(host, port, &rc) > 0, libmemcached_util_getpid2(host, port, NULL, NULL, &rc) > 0);
  RC(memcached_flush(memc, 100));
  show_get(memc, "a");
  RC(memcached_flush(memc, 0));
  show_get(memc, "a");
  RC(memcached_set(memc, LEN("a"), LEN("after"), 0, 0));
  printf("flush: %d\n", libmemcached_util_flush(host, port, &rc));
  show_get(memc, "a");
  RC(memcached_delete(memc, LEN(""), 0));
  memcached_quit(memc);
  NUMBER(memcached_last_error(memc));
  RC(memcached_set(memc, LEN("a"), LEN("after quit"), 0, 0));
  show_get(memc, "a");
}

static void quiet(memcached_st *memc) {
  puts("== buffered, and without replies");
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 1));
  RC(memcached_set(memc, LEN("buf"), LEN("fered"), 0, 0));
  RC(memcached_flush_buffers(memc));
  /* before the next behaviour closes the connection, which may overtake what was buffered */
  show_get(memc, "buf");
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BUFFER_REQUESTS, 0));
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, 1));
  RC(memcached_set(memc, LEN("quiet"), LEN("1"), 0, 0));
  RC(memcached_set(memc, LEN("quiet"), LEN("2"), 0, 0));
  if (!memcached_behavior_get(memc, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL)) {
    /* the binary protocol's server sends its error all the same, and libmemcached does not read it */
    uint64_t number;
    RC(memcached_increment(memc, LEN("buf"), 1, &number));
    NUMBER(memcached_last_error(memc));
  }
  RC(memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, 0));
  show_get(memc, "quiet");
}

static void options(void) {
  puts("== option strings");
  static const char *const strings[] = {
      "--SERVER=localhost", "--SERVER=localhost:12/?3 --BINARY-PROTOCOL", "--server=10.0.0.1:5 --TCP-NODELAY --support-cas",
      "--SOCKET=\"/tmp/a b\" --NAMESPACE=\"ns:\"", "--SERVER=abc --SERVER=b.example:3 --DISTRIBUTION=consistent,MD5 --HASH=CRC",
      "--SERVER=localhost --CONNECT-TIMEOUT=12 --POLL-TIMEOUT=13 --VERIFY-KEY", "--POOL-MIN=2 --POOL-MAX=5 --SERVER=xyz1", "--NOTHING",
      "--SERVER=localhost --DISTRIBUTION=sideways", "nonsense", "--NUMBER-OF-REPLICAS=1 --SERVER=localhost --BUFFER-REQUESTS",
      "--SERVER=localhost END --NOTHING"};
  for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++) {
    char buffer[2048];
    memcached_return_t rc = libmemcached_check_configuration(LEN(strings[i]), buffer, sizeof(buffer));
    memcached_st *memc = memcached(LEN(strings[i]));
    printf("%s: %s, %s\n", strings[i], memcached_strerror(NULL, rc), memc ? "made" : "refused");
    if (!memc) continue;
    for (uint32_t s = 0; s < memcached_server_count(memc); s++) {
      const memcached_instance_st *server = memcached_server_instance_by_position(memc, s);
      printf("  %s %u %s\n", memcached_server_name(server), memcached_server_port(server), memcached_server_type(server));
    }
    for (int b = 0; b < MEMCACHED_BEHAVIOR_MAX; b++)
      if (b != MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE && b != MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE) printf(" %lld", (long long) memcached_behavior_get(memc, b));
    memcached_return_t unused;
    const char *ns = memcached_callback_get(memc, MEMCACHED_CALLBACK_PREFIX_KEY, &unused);
    printf(" %s %u %u\n", ns ? ns : "-", memc->configure.initial_pool_size, memc->configure.max_pool_size);
    memcached_free(memc);
  }
  printf("%d %d\n", memcached("x", 0) == NULL, memcached(NULL, 3) == NULL);
  /* a file that resets what came before */
  char name[] = "/tmp/surface-XXXXXX", text[64];
  FILE *file = fdopen(mkstemp(name), "w");
  fputs("--SERVER=first.example\n--NAMESPACE=\"old\"\nRESET\n--SERVER=second.example\n", file);
  fclose(file);
  snprintf(text, sizeof(text), "--CONFIGURE-FILE=\"%s\"", name);
  memcached_st *memc = memcached(LEN(text));
  memcached_return_t rc = MEMCACHED_FAILURE;
  if (memc) printf("%u, %s\n", memcached_server_count(memc), (char *) memcached_callback_get(memc, MEMCACHED_CALLBACK_PREFIX_KEY, &rc));
  for (uint32_t i = 0; memc && i < memcached_server_count(memc); i++)
    printf("%s\n", memcached_server_name(memcached_server_instance_by_position(memc, i)));
  memcached_free(memc);
  unlink(name);
}

static void pools(void) {
  puts("== pools");
  memcached_st *memc = memcached_create(NULL);
  memcached_server_add(memc, host, port);
  printf("%d\n", memcached_pool_create(memc, 5, 2) == NULL);
  memcached_pool_st *pool = memcached_pool_create(memc, 1, 2);
  memcached_return_t rc;
  memcached_st *one = memcached_pool_pop(pool, false, &rc);
  RC(rc);
  memcached_st *two = memcached_pool_pop(pool, true, &rc);
  RC(rc);
  printf("third: %d", memcached_pool_pop(pool, false, &rc) == NULL);
  RC(rc);
  struct timespec patience = {1, 0};
  printf("third: %d", memcached_pool_fetch(pool, &patience, &rc) == NULL);
  RC(rc);
  RC(memcached_set(one, LEN("pool"), LEN("one"), 0, 0));
  show_get(two, "pool");
  RC(memcached_pool_push(pool, one));
  RC(memcached_pool_behavior_set(pool, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1));
  uint64_t value = 9;
  RC(memcached_pool_behavior_get(pool, MEMCACHED_BEHAVIOR_SUPPORT_CAS, &value));
  NUMBER(value);
  RC(memcached_pool_release(pool, two));
  two = memcached_pool_pop(pool, false, &rc);
  NUMBER(memcached_behavior_get(two, MEMCACHED_BEHAVIOR_SUPPORT_CAS));
  show_get(two, "pool");
  RC(memcached_pool_release(pool, two));
  printf("%d\n", memcached_pool_destroy(pool) == memc);
  memcached_free(memc);
  char text[256];
  snprintf(text, sizeof(text), "--SERVER=%s:%u --POOL-MIN=1 --POOL-MAX=3", host, port);
  pool = memcached_pool(LEN(text));
  one = memcached_pool_pop(pool, false, &rc);
  show_get(one, "pool");
  memcached_pool_push(pool, one);
  printf("%d\n", memcached_pool_destroy(pool) == NULL);
}

static void *thread(void *number) {
  memcached_st *memc = memcached_create(NULL);
  memcached_server_add(memc, host, port);
  char key[32];
  for (int i = 0; i < 200; i++) {
    int length = snprintf(key, sizeof(key), "t%ld-%d", (long) number, i);
    size_t size;
    uint32_t flags;
    memcached_return_t rc;
    if (memcached_set(memc, key, length, key, length, 0, i)) return "a set failed";
    char *value = memcached_get(memc, key, length, &size, &flags, &rc);
    if (rc || size != (size_t) length || memcmp(value, key, size) || flags != (uint32_t) i) return "a get failed";
    free(value);
  }
  memcached_free(memc);
  return NULL;
}

static void threads(void) {
  puts("== threads");
  pthread_t all[8];
  for (long i = 0; i < 8; i++) pthread_create(&all[i], NULL, thread, (void *) i);
  for (int i = 0; i < 8; i++) {
    void *failure;
    pthread_join(all[i], &failure);
    puts(failure ? failure : "ok");
  }
}

static void other(memcached_st *memc) {
  puts("== other");
  RC(memcached_set_sasl_auth_data(memc, NULL, "x"));
  RC(memcached_destroy_sasl_auth_data(memc));
  printf("%d\n", memcached_get_sasl_callbacks(memc) == NULL);
  printf("%d\n", memcached_get_hashkit(memc) != NULL);
  memcached_autoeject(memc);
  memcached_reset_last_disconnected_server(memc);
  printf("%d\n", memcached_query_id(memc) > 1);
  memcached_st *copy = memcached_create(NULL);
  RC(memcached_push(copy, memc));
  NUMBER(memcached_server_count(copy));
  RC(memcached_set_hashkit(copy, (hashkit_st *) memcached_get_hashkit(memc)));
  RC(memcached_reset(copy));
  NUMBER(memcached_server_count(copy));
  memcached_free(copy);
  RC(memcached_set(NULL, LEN("a"), LEN("b"), 0, 0));
  RC(memcached_last_error(NULL));
  RC(memcached_behavior_set(NULL, 0, 0));
  RC(memcached_version(NULL));
  memcached_free(NULL);
  memcached_server_free(NULL);
  memcached_server_list_free(NULL);
  RC(memcached_server_error_return(NULL));
  puts(memcached_server_type(NULL));
  printf("%d\n", memcached_error(memc) != NULL);
  const memcached_instance_st *server = memcached_server_instance_by_position(memc, 0);
  RC(memcached_server_error_return(server));
  printf("%d\n", memcached_server_error(server) != NULL);
  memcached_instance_next_retry(server, 0);
}

static void everything(int binary, int by_socket) {
  printf("==== %s, %s\n", binary ? "binary" : "text", by_socket ? "socket" : "TCP");
  memcached_st *memc = memcached_create(NULL);
  if (by_socket) memcached_server_add_unix_socket(memc, unix_socket);
  else memcached_server_add(memc, host, port);
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_BINARY_PROTOCOL, binary);
  RC(memcached_flush(memc, 0));
  storing(memc);
  keys(memc);
  counting(memc);
  fetching(memc);
  comparing(memc);
  callbacks(memc);
  quiet(memc);
  other(memc);
  if (!by_socket) asking(memc, binary);
  memcached_free(memc);
}

int main(int argc, char **argv) {
  (void) memcached_error_print;
  if (argc < 4) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  host = argv[1];
  port = (in_port_t) atoi(argv[2]);
  unix_socket = argv[3];
  servers();
  behaviors();
  options();
  everything(0, 0);
  everything(1, 0);
  if (strcmp(unix_socket, "-")) everything(0, 1);
  memory();
  pools();
  threads();
  return 0;
}
