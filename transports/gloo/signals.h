#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace shardrun::gloo_transport {

/// Blocks SIGPIPE on this thread while it lives. Gloo writes to sockets without MSG_NOSIGNAL, so a peer that died would
/// kill this process. A thread started meanwhile inherits the mask and keeps it. The process's disposition belongs to
/// the host and is not changed.
class NoSigpipe {
 public:
  NoSigpipe() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) {
      return;
    }
    const timespec at_once = {0, 0};
    while (sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_ = {};
  sigset_t before_ = {};
};

}  // namespace shardrun::gloo_transport
