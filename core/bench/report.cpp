#include "core/bench/report.h"

#include <fmt/format.h>
#include <shardrun/transport.h>

#include <boost/json.hpp>

#include "core/base/human.h"
#include "core/base/median.h"
#include "core/bench/statistics.h"

namespace shardrun::bench {
namespace {

constexpr std::string_view row_format = "{:<16} {:>12} {:>12} {:>5} {:>8} {:>4} {:>11} {:>11} {:>8} {:>8} {:>7}\n";

const char* ceiling_name(What what) noexcept {
  switch (what) {
    case What::copy: return "memcpy";
    case What::reduction: return "reduction";
    default: return "socket";
  }
}

std::string microseconds(double value) { return fmt::format("{:.{}f}", value, value < 100 ? 2 : 1); }

}  // namespace

Row row_of(const Case& measured, int ranks, const std::vector<std::vector<double>>& nanoseconds, std::uint64_t wrong) {
  const std::vector<double> longest = slowest(nanoseconds);
  Row row{.measured = measured, .wrong = wrong};
  const double time_ns = median(longest);
  row.time_us = time_ns / 1e3;
  row.p99_us = p99(longest) / 1e3;
  row.algbw = static_cast<double>(measured.bytes) / time_ns;
  row.busbw = measured.what == What::op ? row.algbw * bus_factor(measured.opcode, ranks) : row.algbw;
  return row;
}

std::string title(const Setting& setting) {
  return fmt::format("# {} on {}, {}: {}\n#\n# ceilings of this machine, all ranks at once{:>24}\n", setting.transport,
                     setting.host, counted(setting.cores, "core"), counted(setting.ranks, "rank"), "GB/s");
}

std::string ceiling_line(const Row& row, const Setting& setting) {
  const std::string size = human_bytes(row.measured.bytes);
  std::string what;
  switch (row.measured.what) {
    case What::copy: what = fmt::format("memcpy of {}, each rank", size); break;
    case What::reduction: what = fmt::format("a += b of {} f32, 1/{} of it each rank", size, setting.ranks); break;
    default:
      what = fmt::format("TCP{}, rank 0 to 1, pieces of {}", setting.is_one_machine ? " over the loopback" : "", size);
  }
  return fmt::format("#   {:<56} {:>7.2f}\n", what, row.algbw);
}

std::string columns() {
  return "#\n" + fmt::format(row_format, "# op", "size (B)", "count", "type", "redop", "in", "time (us)", "p99 (us)",
                             "algbw", "busbw", "#wrong");
}

std::string line(const Row& row) {
  const Case& each = row.measured;
  const bool barrier = each.opcode == SR_OP_BARRIER;
  return fmt::format(row_format, op_name(each.opcode), each.bytes, each.count, barrier ? "-" : dtype_name(each.dtype),
                     each.reduction == 0 ? "-" : reduction_name(each.reduction), each.in_place ? "in" : "out",
                     microseconds(row.time_us), microseconds(row.p99_us), fmt::format("{:.2f}", row.algbw),
                     fmt::format("{:.2f}", row.busbw), row.wrong);
}

std::string to_json(const Setting& setting, const std::vector<Row>& rows) {
  boost::json::object ceilings;
  boost::json::array ops;
  for (const Row& row : rows) {
    const Case& each = row.measured;
    if (each.what != What::op) {
      boost::json::value& of_kind = ceilings[ceiling_name(each.what)];
      if (!of_kind.is_array()) {
        of_kind = boost::json::array();
      }
      of_kind.as_array().push_back(
          {{"bytes", each.bytes}, {"time_us", row.time_us}, {"p99_us", row.p99_us}, {"bandwidth", row.algbw}});
      continue;
    }
    const bool barrier = each.opcode == SR_OP_BARRIER;
    ops.push_back(
        {{"op", op_name(each.opcode)},
         {"bytes", each.bytes},
         {"count", each.count},
         {"dtype", barrier ? boost::json::value() : boost::json::value(dtype_name(each.dtype))},
         {"redop", each.reduction == 0 ? boost::json::value() : boost::json::value(reduction_name(each.reduction))},
         {"ranks", setting.ranks},
         {"in_place", each.in_place},
         {"iterations", each.iterations},
         {"time_us", row.time_us},
         {"p99_us", row.p99_us},
         {"algbw", row.algbw},
         {"busbw", row.busbw},
         {"wrong", row.wrong}});
  }
  const boost::json::object all = {{"transport", setting.transport}, {"host", setting.host}, {"cores", setting.cores},
                                   {"ranks", setting.ranks},         {"ceilings", ceilings}, {"rows", ops}};
  return boost::json::serialize(all) + "\n";
}

}  // namespace shardrun::bench
