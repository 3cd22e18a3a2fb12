#include "transports/mpi/roll_call.h"

#include <shardrun/sdk/worker.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace shardrun::mpi_transport {
namespace {

/// Members whose deadline is the same get there a little apart.
constexpr std::int64_t patience = 400'000'000;
constexpr std::chrono::milliseconds pause{20};

}  // namespace

RollCall::RollCall(const sdk::TransportHost& host, std::string key, std::uint32_t rank, std::uint32_t size)
    : host_(host), key_(std::move(key)), rank_(rank), told_(size) {}

std::string RollCall::key_of(std::uint32_t member, std::uint64_t word) const {
  return key_ + "/at/" + std::to_string(member) + "/" + std::to_string(word);
}

void RollCall::report(std::uint64_t turn) noexcept {
  const std::lock_guard locked(mutex_);
  if (told_[rank_].turn >= turn) {
    return;
  }
  told_[rank_].turn = turn;
  try {
    host_.store_set(key_of(rank_, words_++), std::to_string(turn));
  } catch (const std::exception&) {
    // Others will think that this member is late; there is nobody to tell.
  }
}

std::vector<std::uint32_t> RollCall::missing(std::uint64_t turn) noexcept {
  std::vector<std::uint32_t> members;
  try {
    const std::lock_guard locked(mutex_);
    const std::int64_t latest = sdk::steady_now() + patience;
    bool is_over = false;
    do {
      members.clear();
      for (std::uint32_t member = 0; member < told_.size(); ++member) {
        Told& told = told_[member];
        while (member != rank_ && told.turn < turn && !is_over && ask(member)) {
        }
        if (member != rank_ && told.turn < turn && told.is_asked) {
          members.push_back(member);
        }
        is_over = sdk::steady_now() >= latest || host_.aborted();
      }
      if (!members.empty() && !is_over) {
        std::this_thread::sleep_for(pause);
      }
    } while (!members.empty() && !is_over);
  } catch (const std::exception&) {
    members.clear();  // without the store nobody can be named
  }
  return members;
}

bool RollCall::ask(std::uint32_t member) {
  Told& told = told_[member];
  told.is_asked = true;
  try {
    const std::string said = host_.store_get(key_of(member, told.words), sdk::steady_now());
    std::from_chars(said.data(), said.data() + said.size(), told.turn);
    ++told.words;
    return true;
  } catch (const sdk::TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    return false;
  }
}

}  // namespace shardrun::mpi_transport
