// What is asked about a server, before it ends and after that: each line that it reads asks once, on a handle that stays, and on a
// new one. $1: port
#include <libmemcached-1.0/memcached.h>
#include <libmemcachedutil-1.0/util.h>
#include <stdio.h>
#include <stdlib.h>

static const char *say(memcached_return_t rc) { return rc == MEMCACHED_SUCCESS ? "yes" : "no"; }

static memcached_return_t row(const memcached_instance_st *server, const char *key, size_t key_length, const char *value, size_t length, void *rows) {
  (void) server, (void) key, (void) key_length, (void) value, (void) length;
  ++*(int *) rows;
  return MEMCACHED_SUCCESS;
}

static void health(memcached_st *memc) {
  memcached_return_t rc;
  int rows = 0;
  memcached_stat_st *stat = memcached_stat(memc, NULL, &rc);
  printf("stat %s %d", say(rc), stat && stat->pid > 0);
  memcached_stat_free(memc, stat);
  printf(" server %s", memcached_strerror(memc, memcached_server_error_return(memcached_server_instance_by_position(memc, 0))));
  rc = memcached_stat_execute(memc, NULL, row, &rows);
  printf(" rows %s %d", say(rc), rows > 10);
  printf(" verbosity %s", say(memcached_verbosity(memc, 0)));
}

int main(int argc, char **argv) {
  in_port_t port = argc > 1 ? atoi(argv[1]) : 0;
  memcached_st *stays = memcached_create(NULL);
  memcached_server_add(stays, "127.0.0.1", port);
  for (int c = getchar(); c != EOF; c = getchar()) {
    memcached_return_t rc = MEMCACHED_FAILURE;
    memcached_st *fresh = memcached_create(NULL);
    memcached_server_add(fresh, "127.0.0.1", port);
    printf("new: version %s ", say(memcached_version(fresh)));
    health(fresh);
    memcached_free(fresh);
    printf(" | ping %d", libmemcached_util_ping("127.0.0.1", port, &rc));
    printf(" %s", memcached_strerror(NULL, rc));
    printf(" pid %d", libmemcached_util_getpid("127.0.0.1", port, &rc) > 0);
    printf(" %s | old: ", memcached_strerror(NULL, rc));
    health(stays);
    unsigned long first = 0, last = 0;
    for (int i = 0; i < 100; i++) {
      memcached_stat_st *stat = memcached_stat(stays, NULL, &rc);
      if (stat && !i) first = stat->total_connections;
      if (stat) last = stat->total_connections;
      memcached_stat_free(stays, stat);
    }
    printf(" connections +%lu\n", last - first);
    rc = memcached_set(stays, "key", 3, "value", 5, 0, 0);
    fprintf(stderr, "set %s\n", memcached_strerror(stays, rc));
    fflush(stdout);
    if (getchar() == EOF) break;
  }
  memcached_free(stays);
  return 0;
}
