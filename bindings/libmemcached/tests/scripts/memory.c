/* Runs out of memory for copies of a value, with one handle, and prints what it is told. */
#include <libmemcached/memcached.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SIZE = 900000 };

static char value[SIZE];

/* No block of so many bytes is to be had any more. */
static void exhaust(size_t size) {
  unsigned long pages = 0;
  struct rlimit limit;
  FILE *statm = fopen("/proc/self/statm", "r");
  if (!statm || fscanf(statm, "%lu", &pages) != 1 || fclose(statm)) exit(2);
  if (getrlimit(RLIMIT_AS, &limit)) exit(2);
  limit.rlim_cur = (rlim_t) pages * (rlim_t) sysconf(_SC_PAGESIZE);
  if (setrlimit(RLIMIT_AS, &limit)) exit(2);
  while (malloc(size)) {}
}

static void told(memcached_st *memc, const char *what, memcached_return_t rc) {
  /* Behind the handle's address. */
  const char *why = rc == MEMCACHED_MEMORY_ALLOCATION_FAILURE ? strchr(memcached_last_error_message(memc), ' ') : NULL;
  printf("%s: %s\n", what, why ? why + 1 : memcached_strerror(memc, rc));
}

int main(int argc, char **argv) {
  const char *keys[] = {"small", "large"};
  size_t lengths[] = {5, 5}, length;
  uint32_t flags;
  memcached_return_t rc;
  memcached_result_st result;
  char *got;
  if (argc != 2) return 2;
  setvbuf(stdout, malloc(4096), _IOFBF, 4096);
  memcached_server_list_st list = memcached_servers_parse(argv[1]);
  memcached_st *memc = memcached_create(NULL);
  memcached_server_push(memc, list);
  memcached_server_list_free(list);
  /* no object has so many bytes */
  told(memc, "set endless", memcached_set(memc, "endless", 7, value, SIZE_MAX, 0, 0));
  told(memc, "append endless", memcached_append(memc, "endless", 7, value, (size_t) PTRDIFF_MAX + 1, 0, 0));
  if (memcached_result_create(memc, &result)) {
    rc = memcached_result_set_value(&result, value, SIZE_MAX);
    printf("endless result: %s, %zu\n", memcached_strerror(memc, rc), memcached_result_length(&result));
    memcached_result_free(&result);
  }
  told(memc, "set large", memcached_set(memc, "large", 5, value, SIZE, 0, 0));
  told(memc, "set small", memcached_set(memc, "small", 5, "s", 1, 0, 0));
  exhaust(SIZE / 2);
  got = memcached_get(memc, "large", 5, &length, &flags, &rc);
  told(memc, got ? "got large" : "no large", rc);
  told(memc, "mget", memcached_mget(memc, keys, lengths, 2));
  if (memcached_result_create(memc, &result)) {
    while (memcached_fetch_result(memc, &result, &rc)) printf("fetched %s\n", memcached_result_key_value(&result));
    memcached_result_free(&result);
  }
  told(memc, "append", memcached_append(memc, "large", 5, "+", 1, 0, 0));
  got = memcached_get(memc, "small", 5, &length, &flags, &rc);
  told(memc, got ? "got small" : "no small", rc);
  told(memc, "set small", memcached_set(memc, "small", 5, "t", 1, 0, 0));
  return 0;
}
