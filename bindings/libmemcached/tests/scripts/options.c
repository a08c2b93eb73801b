// What option strings make, or that they are refused: each of a list, and many that differ from those by some bytes. $1: how many
#define _GNU_SOURCE
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *const strings[] = {
  "--SERVER=localhost", "--SERVER=host:80a", "--SERVER=h:80", "--SERVER=host:+80", "--SERVER=host:-1", "--SERVER=host:99999", "--SERVER=host:123456",
  "--SERVER=10.0.0.1:11212/?3 --SERVER=10.0.0.2:0", "--SERVER=a.b-c_d:1/?99999 --SORT-HOSTS", "--server=LOCALHOST --binary-protocol",
  "--SOCKET=\"/tmp/a b\"/?7 --NAMESPACE=\"ns:\"", "--SOCKET=path.x", "--NAMESPACE=one --NAMESPACE=two", "--NAMESPACE=\"a b\"", "--NAMESPACE=\"\"",
  "--DISTRIBUTION=consistent,MD5 --HASH=CRC", "--DISTRIBUTION=modula", "--DISTRIBUTION=random,HSIEH", "--HASH=FNV1_64 --HASH=MD5", "--HASH=JENKINS",
  "--CONNECT-TIMEOUT=12 --POLL-TIMEOUT=4294967297 --RETRY-TIMEOUT=99999999999999999999", "--IO-KEY-PREFETCH=1 --IO-MSG-WATERMARK=2 --IO-BYTES-WATERMARK=3",
  "--POOL-MIN=2 --POOL-MAX=5", "--USE-UDP --BUFFER-REQUESTS", "--BINARY-PROTOCOL --VERIFY-KEY", "--TCP-KEEPIDLE --TCP-KEEPALIVE --TCP-NODELAY",
  "--FETCH-VERSION --USER-DATA --SUPPORT-CAS --NOREPLY", "#comment\n--SERVER=abc", "--SERVER=abc\n#comment", "--SERVER=abc\t\r\n", " --SERVER=abc", "--SERVER=abc ",
  "--SERVER=abc  --NOREPLY", "--SERVER=abc --NOREPLY END --NOTHING", "--SERVER=abc RESET --SERVER=def", "CSL_ERROR", "ERROR", "SERVERS", "TRUE", "--", "",
  "--SERVER=\"abc\"", "--SERVER=ab\"c", "--SERVER=123", "--SERVER=1.2.3.4.5", "--SERVER=1234.2.3.4", "--NAMESPACE=1.2.3.4", "--NAMESPACE=MD5", "--NAMESPACE=md5x",
  "--NAMESPACE=\"a\\\"b\"", "--NAMESPACE=L\"abc\"", "INCLUDE \"/nowhere\"", "--CONFIGURE-FILE=\"/nowhere/at/all\"", "--RANDOMIZE-REPLICA-READ --HASH-WITH-NAMESPACE",
  "--NUMBER-OF-REPLICAS=1 --REMOVE-FAILED-SERVERS=1 --SND-TIMEOUT=5 --RCV-TIMEOUT=6 --SOCKET-SEND-SIZE=7 --SOCKET-RECV-SIZE=8",
};
enum { STRINGS = sizeof(strings) / sizeof(*strings) };

static void try(const char *string, size_t length) {
  // What libmemcached ends the program at, and what turns on its parser's messages.
  if (strcasestr(string, "FILE=\"\"") || strcasestr(string, "DEBUG")) return;
  char message[1024];
  memcached_return_t rc = libmemcached_check_configuration(string, length, message, sizeof(message));
  memcached_st *memc = memcached(string, length);
  for (size_t i = 0; i < length; i++) putchar(string[i] < ' ' ? '^' : string[i]);
  printf(": %d %s", rc, memc ? "made" : "refused");
  for (uint32_t s = 0; memc && s < memcached_server_count(memc); s++) {
    const memcached_instance_st *server = memcached_server_instance_by_position(memc, s);
    printf(" %s %u %s", memcached_server_name(server), memcached_server_port(server), memcached_server_type(server));
  }
  for (int b = 0; memc && b < MEMCACHED_BEHAVIOR_MAX; b++)
    if (b != MEMCACHED_BEHAVIOR_SOCKET_SEND_SIZE && b != MEMCACHED_BEHAVIOR_SOCKET_RECV_SIZE) printf(" %lld", (long long) memcached_behavior_get(memc, b));
  if (memc) {
    const char *prefix = memcached_callback_get(memc, MEMCACHED_CALLBACK_PREFIX_KEY, &rc);
    printf(" %s %u %u %d", prefix ? prefix : "-", memc->configure.initial_pool_size, memc->configure.max_pool_size, memc->flags.is_fetching_version);
    memcached_free(memc);
  }
  puts("");
}

static unsigned long below(unsigned long limit) {
  static unsigned long state = 88172645463325252;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % limit;
}

int main(int argc, char **argv) {
  memcached_st *plain = memcached(NULL, 0);
  printf("by the environment: %d servers\n", plain ? (int) memcached_server_count(plain) : -1);
  memcached_free(plain);
  for (int i = 0; i < STRINGS; i++) try(strings[i], strlen(strings[i]));
  for (long count = argc > 1 ? atol(argv[1]) : 0; count > 0; count--) {
    char string[512];
    const char *first = strings[below(STRINGS)], *blank = below(3) ? "" : " ";
    int length = snprintf(string, sizeof(string), "%s%s%s", first, blank, below(3) ? "" : strings[below(STRINGS)]);
    for (int changes = below(3); changes > 0 && length > 0; changes--) {
      static const char bytes[] = "a1:/?=, -\"\\+.#_\n0xL9";
      int at = below(length);
      switch (below(4)) {
      case 0: string[at] = bytes[below(sizeof(bytes) - 1)]; break;
      case 1: memmove(string + at, string + at + 1, length - at); length--; break;
      case 2: length = at; string[at] = 0; break;
      case 3: memmove(string + at + 1, string + at, length + 1 - at); string[at] = bytes[below(sizeof(bytes) - 1)]; length++; break;
      }
    }
    try(string, length);
  }
  return 0;
}
