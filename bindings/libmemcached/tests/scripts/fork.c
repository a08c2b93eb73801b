/* A program that forks while one of its threads asks a server: the child does not have that thread, and waits for nothing that it holds.
 * usage: fork PORT; forks after a line on its standard input. Prints how the child ended. */
#include <libmemcached/memcached.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Less than the library waits for a thread that never answers, and far more than the child needs. */
#define HANGS_AFTER_S 8

static memcached_st *handle(const char *port)
{
  memcached_st *st = memcached_create(NULL);

  if (memcached_server_add(st, "127.0.0.1", (in_port_t)atoi(port)) != MEMCACHED_SUCCESS)
    exit(2);
  return st;
}

static void *ask(void *st)
{
  size_t length;
  uint32_t flags;
  memcached_return_t code;

  free(memcached_get(st, "key", 3, &length, &flags, &code));
  return NULL;
}

int main(int count, char **arguments)
{
  pthread_t thread;
  memcached_st *its, *childs;
  int status;
  pid_t child;

  if (count != 2)
    return 2;
  its = handle(arguments[1]);
  childs = handle(arguments[1]);
  if (pthread_create(&thread, NULL, ask, its) != 0 || getchar() != '\n')
    return 2;
  child = fork();
  if (child == 0) {
    alarm(HANGS_AFTER_S);
    ask(childs);
    _exit(0);
  }
  waitpid(child, &status, 0);
  if (WIFEXITED(status))
    printf("the child ended with %d\n", WEXITSTATUS(status));
  else
    printf("the child was ended by signal %d\n", WTERMSIG(status));
  pthread_join(thread, NULL);
  memcached_free(its);
  memcached_free(childs);
  return 0;
}
