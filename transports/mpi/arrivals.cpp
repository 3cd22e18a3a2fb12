#include "transports/mpi/arrivals.h"

#include <shardrun/sdk/transport/worker.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

namespace shardrun::mpi_transport {
namespace {

/// How long to wait for reports: members with the same deadline arrive here at slightly different times.
constexpr std::chrono::milliseconds report_wait(400);
constexpr std::chrono::milliseconds report_poll_interval{20};

}  // namespace

Arrivals::Arrivals(const sdk::TransportHost& host, std::string key, std::uint32_t rank, std::uint32_t size)
    : host_(host), key_(std::move(key)), rank_(rank), reports_(size) {}

std::string Arrivals::key_of(std::uint32_t member, std::uint64_t index) const {
  return key_ + "/at/" + std::to_string(member) + "/" + std::to_string(index);
}

void Arrivals::report(std::uint64_t number) noexcept {
  const std::lock_guard locked(mutex_);
  if (reports_[rank_].number >= number) {
    return;
  }
  reports_[rank_].number = number;
  try {
    host_.store_set(key_of(rank_, written_++), std::to_string(number));
  } catch (const std::exception&) {
    // The report is lost, so others will think that this member is late. There is no way to tell them.
  }
}

std::vector<std::uint32_t> Arrivals::missing(std::uint64_t number) noexcept {
  std::vector<std::uint32_t> members;
  try {
    const std::lock_guard locked(mutex_);
    const sdk::Deadline latest = sdk::Deadline::now() + report_wait;
    bool is_over = false;
    do {
      members.clear();
      for (std::uint32_t member = 0; member < reports_.size(); ++member) {
        Report& report = reports_[member];
        while (member != rank_ && report.number < number && !is_over && read_reports(member)) {
        }
        if (member != rank_ && report.number < number && report.is_read) {
          members.push_back(member);
        }
        is_over = latest.passed() || host_.aborted();
      }
      if (!members.empty() && !is_over) {
        std::this_thread::sleep_for(report_poll_interval);
      }
    } while (!members.empty() && !is_over);
  } catch (const std::exception&) {
    members.clear();  // without the store no member can be named
  }
  return members;
}

bool Arrivals::read_reports(std::uint32_t member) {
  Report& report = reports_[member];
  report.is_read = true;
  try {
    const std::string said = host_.store_get(key_of(member, report.read), sdk::Deadline::now());
    std::from_chars(said.data(), said.data() + said.size(), report.number);
    ++report.read;
    return true;
  } catch (const sdk::TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    return false;
  }
}

}  // namespace shardrun::mpi_transport
