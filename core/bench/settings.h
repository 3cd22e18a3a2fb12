#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::bench {

enum class Placing { both, in_place, out_of_place };

/// What to measure. Ops, dtypes and reductions are numbers of shardrun/transport.h. SR_OP_SEND stands for a ring in
/// which every member sends to the next.
struct Settings {
  std::string transport;
  std::vector<std::filesystem::path> plugins;                ///< folders that are searched first; absolute
  std::vector<std::pair<std::string, std::string>> options;  ///< options of the transport, as in a job file
  int ranks = 2;
  std::vector<std::uint32_t> opcodes;
  std::vector<std::uint64_t> sizes;  ///< bytes
  std::vector<std::uint32_t> dtypes;
  std::vector<std::uint32_t> reductions;
  std::optional<std::int64_t> iterations;  ///< nothing: chosen by size
  std::optional<std::int64_t> warm_up;
  Placing places = Placing::both;
  double timeout = 60;  ///< deadline of an op, in seconds
  std::string device;   ///< the device whose memory the transport moves; empty: the host's
};

/// The settings on which ranks must agree, as text.
[[nodiscard]] std::string to_text(const Settings& settings);

/// Parses "8,4K,1M-64M": sizes in bytes, or with K, M or G (also KB, KiB, …) for powers of 1024. In a range each size
/// is `factor` times the previous one. Throws Error{usage}.
[[nodiscard]] std::vector<std::uint64_t> parse_sizes(std::string_view text, std::uint64_t factor);

/// Parse names separated by commas, or "all". Throw Error{usage} with the nearest name.
[[nodiscard]] std::vector<std::uint32_t> parse_ops(std::string_view text);
[[nodiscard]] std::vector<std::uint32_t> parse_dtypes(std::string_view text);
[[nodiscard]] std::vector<std::uint32_t> parse_reductions(std::string_view text);

/// Whether the op needs at least two ranks.
[[nodiscard]] bool needs_peer(std::uint32_t opcode) noexcept;
/// Whether an op takes a reduction.
[[nodiscard]] bool reduces(std::uint32_t opcode) noexcept;

/// Names as in the options: "send_recv" for SR_OP_SEND; "f32"; "sum".
[[nodiscard]] std::string_view op_name(std::uint32_t opcode);
[[nodiscard]] std::string_view dtype_name(std::uint32_t dtype);
[[nodiscard]] std::string_view reduction_name(std::uint32_t reduction);

}  // namespace shardrun::bench
