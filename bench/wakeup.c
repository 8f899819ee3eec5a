// What a message's way between two processes costs from C, for wakeup.ts to show beside its own: a blocking epoll_wait on a unix
// socket, and nothing else; then with the hand-over from the waiting thread to the main one, which a runtime's loop needs too.
// A line each, separated by tabs: way, silence, p50 and p99 in microseconds, number of messages.
//   gcc -O2 -pthread bench/wakeup.c -o wakeup
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 128

typedef struct {
  int socket;
  int doorbell;
  int isThreaded;
} Waiter;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void check(ssize_t result, const char *what) {
  if (result >= 0) return;
  perror(what);
  exit(1);
}

static int watch(int fd) {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN};
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
  return epoll;
}

// Waits on the socket, tells the main thread, and goes on when that has read the message.
static void *waitingThread(void *argument) {
  Waiter *waiter = argument;
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN | EPOLLET};
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, waiter->socket, &event), "epoll_ctl");
  for (;;) {
    check(epoll_wait(epoll, &event, 1, -1), "epoll_wait");
    uint64_t one = 1;
    check(write(waiter->doorbell, &one, sizeof one), "write");
  }
  return NULL;
}

static void start(Waiter *waiter, int socket, int isThreaded) {
  *waiter = (Waiter){.socket = socket, .doorbell = eventfd(0, EFD_CLOEXEC), .isThreaded = isThreaded};
  pthread_t thread;
  if (isThreaded) check(-pthread_create(&thread, NULL, waitingThread, waiter), "pthread_create");
}

// Receives one message; answers with the time at which it was there.
static double receive(Waiter *waiter, int epoll, char *message) {
  struct epoll_event event;
  for (;;) {
    check(epoll_wait(epoll, &event, 1, -1), "epoll_wait");
    uint64_t count;
    if (waiter->isThreaded) check(read(waiter->doorbell, &count, sizeof count), "read");
    ssize_t got = recv(waiter->socket, message, MESSAGE_BYTES, MSG_DONTWAIT);
    if (got == MESSAGE_BYTES) return now();
    if (got == 0) exit(0);
  }
}

static void measure(int isThreaded, int silenceMs, int count) {
  int sockets[2];
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), "socketpair");
  pid_t peer = fork();
  check(peer, "fork");
  char message[MESSAGE_BYTES] = {0};
  Waiter waiter;
  close(sockets[peer == 0]);
  int socket = sockets[peer != 0];
  start(&waiter, socket, isThreaded);
  int epoll = watch(isThreaded ? waiter.doorbell : socket);
  if (peer == 0) {
    for (;;) {
      double times[2] = {receive(&waiter, epoll, message)};
      times[1] = now();
      memcpy(message, times, sizeof times);
      check(send(socket, message, sizeof message, MSG_NOSIGNAL), "send");
    }
  }
  double *latencies = malloc(2 * count * sizeof *latencies);
  for (int i = -20; i < count; i++) {
    if (silenceMs > 0) usleep(silenceMs * 1000);
    double begin = now();
    check(send(socket, message, sizeof message, MSG_NOSIGNAL), "send");
    double end = receive(&waiter, epoll, message), times[2];
    memcpy(times, message, sizeof times);
    if (i < 0) continue;
    latencies[2 * i] = times[0] - begin;
    latencies[2 * i + 1] = end - times[1];
  }
  close(socket);
  kill(peer, 9);
  waitpid(peer, NULL, 0);
  qsort(latencies, 2 * count, sizeof *latencies, compare);
  const char *way = isThreaded ? "C, by a thread" : "C, directly";
  printf("%s\t%d ms\t%.1f\t%.1f\t%d\n", way, silenceMs, latencies[count], latencies[2 * count * 99 / 100], count);
  fflush(stdout);
  free(latencies);
}

int main(void) {
  for (int isThreaded = 0; isThreaded < 2; isThreaded++) {
    measure(isThreaded, 0, 5000);
    measure(isThreaded, 10, 300);
    measure(isThreaded, 100, 40);
  }
}
