/* Rules of the region through the drop-in: IP PORT. Prints what each call answers. */
#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static memcached_st *memc;

static void said(const char *what, memcached_return_t rc) { printf("%s: %s\n", what, memcached_strerror(memc, rc)); }

static void show(const char *key) {
  memcached_return_t rc;
  size_t length;
  uint32_t flags;
  char *value = memcached_get(memc, key, strlen(key), &length, &flags, &rc);
  printf("get %s: %.3s %s\n", key, value ? value : "-", memcached_strerror(memc, rc));
  free(value);
}

int main(int count, char **arguments) {
  char *big = calloc(1, 3000000);
  uint64_t cas;
  (void)count;
  memc = memcached_create(NULL);
  memcached_server_add(memc, arguments[1], (in_port_t)atoi(arguments[2]));
  memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1);
  said("set of 1.5 MB", memcached_set(memc, "k", 1, big, 1500000, 0, 0));
  for (int quiet = 0; quiet < 2; quiet++) {
    said("set", memcached_set(memc, "k", 1, "old", 3, 0, 0));
    memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, (uint64_t)quiet);
    said("add", memcached_add(memc, "k", 1, big, 3000000, 0, 0));
    said("replace", memcached_replace(memc, "k", 1, big, 3000000, 0, 0));
    said("append", memcached_append(memc, "k", 1, big, 3000000, 0, 0));
    said("cas", memcached_cas(memc, "k", 1, big, 3000000, 0, 0, cas = 1));
    memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, 0);
    show("k");
    memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, (uint64_t)quiet);
    said("set of 3 MB", memcached_set(memc, "k", 1, big, 3000000, 0, 0));
    memcached_behavior_set(memc, MEMCACHED_BEHAVIOR_NOREPLY, 0);
    show("k");
  }
  said("set first", memcached_set(memc, "first", 5, "1st", 3, 0, 0));
  for (int i = 0; i < 40; i++) {
    char key[16];
    memcached_return_t rc = memcached_set(memc, key, (size_t)sprintf(key, "fill-%d", i), big, 1000000, 0, 0);
    if (rc != MEMCACHED_SUCCESS) {
      said("full", rc);
      break;
    }
  }
  show("first");
  said("flush", memcached_flush(memc, 0));
  memcached_free(memc);
  return 0;
}
