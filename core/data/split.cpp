#include "core/data/split.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "core/base/error.h"

namespace shardrun::data {
namespace {

__extension__ using Wide = unsigned __int128;

/// floor(fraction * count), where `fraction` stands for the shortest decimal number that reads as this float64. So 0.29
/// of 100 is 29, although the float64 is below 0.29. REQUIRES: 0 < fraction <= 1.
std::int64_t part_of(std::int64_t count, double fraction) {
  std::array<char, 32> text = {};  // for example 2.9e-01
  const char* const end =
      std::to_chars(text.data(), text.data() + text.size(), fraction, std::chars_format::scientific).ptr;
  Wide product = 0;  // at most 17 digits times the count: less than 2^120
  int exponent = 0;
  const char* at = text.data();
  for (bool is_behind_point = false; *at != 'e'; ++at) {
    if (*at == '.') {
      is_behind_point = true;
    } else {
      product = product * 10 + static_cast<unsigned>(*at - '0');
      exponent -= is_behind_point ? 1 : 0;
    }
  }
  int of_ten = 0;
  std::from_chars(at + (at[1] == '+' ? 2 : 1), end, of_ten);
  product *= static_cast<Wide>(count);
  for (exponent += of_ten; exponent < 0 && product > 0; ++exponent) {
    product /= 10;
  }
  return static_cast<std::int64_t>(product);
}

}  // namespace

std::int64_t training_count(std::int64_t count, double fraction, std::string_view source) {
  if (!(fraction > 0 && fraction <= 1)) {
    throw Error(ErrorCode::job, fmt::format("[data] split = {}: expected a fraction in (0, 1]", fraction));
  }
  const std::int64_t training = part_of(count, fraction);
  if (training == 0) {
    throw Error(ErrorCode::data,
                fmt::format("'{}': [data] split = {} of its {} samples or tokens leaves none to train on", source,
                            fraction, count));
  }
  return training;
}

}  // namespace shardrun::data
