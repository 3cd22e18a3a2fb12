#include "core/launch/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <system_error>

#include "core/base/error.h"
#include "core/launch/protocol.h"

namespace shardrun::launch {
namespace {

constexpr const char* descriptor_name = "SHARDRUN_LAUNCH_FD";

bool is_replaced(std::string_view entry) {
  constexpr std::array<std::string_view, 9> names = {
      "RANK=",        "WORLD_SIZE=",      "LOCAL_RANK=",      "LOCAL_WORLD_SIZE=",  "MASTER_ADDR=",
      "MASTER_PORT=", "OMP_NUM_THREADS=", "OMP_WAIT_POLICY=", "SHARDRUN_LAUNCH_FD="};
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) { return entry.starts_with(name); });
}

Error senseless(std::string_view what) {
  return Error(
      ErrorCode::io,
      fmt::format("this process was started as a rank, but {}; ranks are started by 'shardrun run' alone", what));
}

std::string text_variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) {
    throw senseless(fmt::format("{} is not set", name));
  }
  return value;
}

int number_of(std::string_view name, std::string_view text, int lowest, int highest) {
  int value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < lowest || value > highest) {
    throw senseless(fmt::format("{} is '{}', not a number from {} to {}", name, text, lowest, highest));
  }
  return value;
}

int variable(const char* name, int lowest, int highest) {
  return number_of(name, text_variable(name), lowest, highest);
}

std::string read_all(int descriptor) {
  std::string bytes;
  std::array<char, 256> chunk = {};
  for (;;) {
    const ssize_t got = ::read(descriptor, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return bytes;
    }
    bytes.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const RankContext& context,
                                          int threads) {
  std::vector<std::string> entries;
  std::copy_if(inherited.begin(), inherited.end(), std::back_inserter(entries),
               [](const std::string& entry) { return !is_replaced(entry); });
  entries.push_back(fmt::format("RANK={}", context.rank));
  entries.push_back(fmt::format("WORLD_SIZE={}", context.world_size));
  entries.push_back(fmt::format("LOCAL_RANK={}", context.local_rank));
  entries.push_back(fmt::format("LOCAL_WORLD_SIZE={}", context.local_world_size));
  entries.push_back(fmt::format("MASTER_ADDR={}", context.address));
  entries.push_back(fmt::format("MASTER_PORT={}", context.port));
  entries.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  entries.push_back("OMP_WAIT_POLICY=passive");
  entries.push_back(fmt::format("{}={}", descriptor_name, handed_over_descriptor));
  return entries;
}

std::string handed_over_bytes(const RankContext& context) {
  return FrameWriter(FrameType::hello)
      .raw(text_of(context.token))
      .u32(static_cast<std::uint32_t>(context.heartbeat.count()))
      .bytes(context.run)
      .finish();
}

std::optional<RankContext> take_rank_context() {
  if (std::getenv(descriptor_name) == nullptr) {
    return std::nullopt;
  }
  const int descriptor = variable(descriptor_name, 3, 1 << 20);
  ::unsetenv(descriptor_name);
  const std::string bytes = read_all(descriptor);
  ::close(descriptor);
  if (bytes.size() < frame_header_bytes + 2) {
    throw senseless("its launcher handed nothing over");
  }
  RankContext context;
  PayloadReader reader(std::string_view(bytes).substr(frame_header_bytes + 2));
  const std::string_view token = reader.raw(context.token.size());
  std::copy(token.begin(), token.end(), context.token.begin());
  context.heartbeat = std::chrono::milliseconds(reader.u32());
  context.run = reader.bytes();
  reader.expect_end();
  context.world_size = variable("WORLD_SIZE", 1, 1 << 20);
  context.rank = variable("RANK", 0, context.world_size - 1);
  context.local_world_size = variable("LOCAL_WORLD_SIZE", 1, context.world_size);
  context.local_rank = variable("LOCAL_RANK", 0, context.local_world_size - 1);
  context.address = text_variable("MASTER_ADDR");
  context.port = static_cast<std::uint16_t>(variable("MASTER_PORT", 1, 65535));
  return context;
}

}  // namespace shardrun::launch
