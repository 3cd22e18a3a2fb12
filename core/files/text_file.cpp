#include "core/files/text_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/files/mapped_file.h"

namespace shardrun::files {

std::string read_text_file(const std::filesystem::path& path, std::size_t most) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  if (text.size() > most) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it has {} bytes, expected at most {}", path.native(),
                                             text.size(), most));
  }
  const std::size_t nul = text.find('\0');
  if (const auto invalid = first_invalid_utf8(text); invalid || nul != std::string_view::npos) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it is no UTF-8 text, as byte {} shows", path.native(),
                                             std::min(invalid.value_or(nul), nul)));
  }
  return std::string(text);
}

}  // namespace shardrun::files
