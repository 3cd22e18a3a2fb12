#include "core/data/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/philox.h"
#include "core/files/mapped_file.h"

namespace shardrun::data {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t most_pages = (std::size_t{64} << 20U) / page;

}  // namespace

std::string fingerprint(const std::filesystem::path& path) {
  const files::MappedFile file(path);
  const std::string_view text = file.text();
  const std::size_t pages = (text.size() + page - 1) / page;
  const std::size_t taken = std::min(pages, most_pages);
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < taken; ++i) {
    const std::size_t first = taken < 2 ? 0 : i * (pages - 1) / (taken - 1);  // the last one too
    // Odd, so that the places of equal pages count.
    hash = (hash ^ hash_name(text.substr(first * page, page))) * 0x9e3779b97f4a7c15ULL;
  }
  return fmt::format("{} bytes, hash {:016x}", text.size(), hash);
}

}  // namespace shardrun::data
