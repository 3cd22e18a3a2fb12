#include "core/data/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/base/utf8.h"
#include "core/memory/machine.h"

namespace shardrun::data {
namespace {

constexpr std::size_t piece_of_others = std::size_t{1} << 20U;
constexpr std::size_t widest_character = 4;

/// Calls `use(piece, offset)` for the text as it was when the file was opened. A tokenizer of kind `file` gets the text
/// as one piece; others get pieces that end between characters. Returns the hash of the text.
template <typename Use>
std::uint64_t for_each_piece(const files::SteadyFile& file, TokenizerKind kind, const Use& use) {
  const std::size_t piece_bytes = kind == TokenizerKind::file ? file.size() : piece_of_others;
  std::vector<char> buffer(piece_bytes + widest_character);
  std::uint64_t hash = 0;
  std::size_t kept = 0;  // bytes of an incomplete character at the end of the previous piece
  for (std::size_t read = 0; read < file.size();) {
    stop_point();
    const std::span<char> next = std::span(buffer).subspan(kept, std::min(piece_bytes, file.size() - read));
    file.read(read, std::as_writable_bytes(next));
    hash = (hash ^ files::hash_of(std::as_bytes(next))) * 0x9e3779b97f4a7c15ULL;
    const std::size_t offset = read - kept;
    read += next.size();
    std::string_view text(buffer.data(), kept + next.size());
    kept = read < file.size() ? begun_utf8(text) : 0;
    use(text.substr(0, text.size() - kept), offset);
    std::memmove(buffer.data(), buffer.data() + text.size() - kept, kept);
  }
  return hash;
}

std::string quoted(const files::SteadyFile& file) { return fmt::format("'{}'", file.path().native()); }

void require_text(const files::SteadyFile& file, TokenizerKind kind) {
  if (file.size() == 0) {
    throw Error(ErrorCode::data, fmt::format("{} is empty: it has no tokens", quoted(file)));
  }
  // Checks the memory before reading. With a tokenizer of kind `file` the text is read as a whole. Otherwise a token is
  // a character, which has at most four bytes, and the token has at least one.
  const bool is_whole = kind == TokenizerKind::file;
  const std::optional<memory::MemoryRoom> room = memory::available_memory();
  if (const std::uint64_t least = file.size() / (is_whole ? 1 : widest_character); room && least > room->bytes) {
    throw Error(
        ErrorCode::data,
        fmt::format("{} has {} bytes: {} at least {} bytes of memory, and {}: give a smaller part, or a file of "
                    "tokens, which is read from the disk",
                    quoted(file), file.size(), is_whole ? "tokenising it takes" : "its tokens take", least,
                    to_string(*room, fmt::format("{} bytes", room->bytes), fmt::format("{} bytes", room->limit))));
  }
}

/// Calls use(). If it throws Error, adds the file's name to the message.
template <typename Use>
void naming(const files::SteadyFile& file, const Use& use) {
  try {
    use();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", quoted(file), error.message()));
  }
}

constexpr std::string_view magic = "tokens\n1";
constexpr std::size_t tokens_begin = 4096;

/// The head of the memfd. The tokens follow at offset tokens_begin, then the tokenizer as JSON.
struct Head {
  std::array<char, 8> magic;
  std::uint64_t text_bytes;
  std::uint64_t text_hash;
  std::uint64_t tokens;
  std::uint64_t token_bytes;  ///< bytes per token
  std::uint64_t tokenizer_bytes;
};

std::size_t token_bytes(const Tokenizer& tokenizer) {
  return tokenizer.vocabulary() <= 256 ? 1 : tokenizer.vocabulary() <= 65536 ? 2 : 4;
}

std::string fingerprint_text(std::uint64_t bytes, std::uint64_t hash) {
  return fmt::format("{} bytes, hash {:016x}", bytes, hash);
}

/// Throws Error{io} if the process's limit for file sizes is too low for the tokens. This is checked before writing,
/// because a write past the limit would fail with EFBIG halfway (the process ignores SIGXFSZ).
void require_file_size(const files::SteadyFile& file, std::uint64_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    throw Error(
        ErrorCode::io,
        fmt::format("the tokens of {} take {} bytes of memory that processes share, for which the limit of file "
                    "sizes counts, and that is {}: raise it (ulimit -f unlimited)",
                    quoted(file), bytes, limit.rlim_cur));
  }
}

/// Writes the tokens of a text piece by piece. Returns the hash of the text that was read.
template <typename Token>
std::uint64_t write_tokens(const files::SteadyFile& text, TokenizerKind kind, Encoder& encoder,
                           const files::FileDescriptor& to, const std::filesystem::path& name) {
  std::vector<Token> tokens;
  return for_each_piece(text, kind, [&](std::string_view piece, std::size_t offset) {
    tokens.clear();
    encoder.encode(piece, offset, tokens);
    files::write_all(to, std::as_bytes(std::span(tokens)), name);
  });
}

}  // namespace

TextFile::TextFile(files::SteadyFile file, TokenizerKind kind) : file_(std::move(file)) {
  require_text(file_, kind);
  if (kind == TokenizerKind::byte) {
    hash_ = for_each_piece(file_, kind, [](std::string_view, std::size_t) {});
    tokens_ = static_cast<std::int64_t>(file_.size());
    return;
  }
  CharacterSet characters(quoted(file_));
  hash_ =
      for_each_piece(file_, kind, [&](std::string_view piece, std::size_t offset) { characters.add(piece, offset); });
  tokenizer_ = characters.tokenizer();
  tokens_ = characters.count();
}

TextFile::TextFile(files::SteadyFile file, Tokenizer tokenizer)
    : file_(std::move(file)), tokenizer_(std::move(tokenizer)) {
  require_text(file_, tokenizer_.kind());
  Encoder encoder(tokenizer_);
  std::vector<std::int32_t> tokens;
  naming(file_, [&] {
    hash_ = for_each_piece(file_, tokenizer_.kind(), [&](std::string_view piece, std::size_t offset) {
      tokens.clear();
      encoder.encode(piece, offset, tokens);
      tokens_ += static_cast<std::int64_t>(tokens.size());
    });
  });
}

std::string TextFile::fingerprint() const { return fingerprint_text(file_.size(), hash_); }

std::uint64_t TextFile::tokenised_bytes() const {
  return tokens_begin + static_cast<std::uint64_t>(tokens_) * token_bytes(tokenizer_) + tokenizer_.to_json().size();
}

files::SteadyFile TextFile::tokenise() const {
  require_file_size(file_, tokenised_bytes());
  const std::string name = fmt::format("the tokens of {}", file_.path().native());
  files::FileDescriptor memory(::memfd_create("shardrun-tokens", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.is_open()) {
    throw files::system_error("make room for", name, errno);
  }
  const std::string json = tokenizer_.to_json();
  Head head = {.magic = {},
               .text_bytes = file_.size(),
               .text_hash = hash_,
               .tokens = static_cast<std::uint64_t>(tokens_),
               .token_bytes = token_bytes(tokenizer_),
               .tokenizer_bytes = json.size()};
  std::ranges::copy(magic, head.magic.begin());
  std::vector<std::byte> first(tokens_begin);
  std::memcpy(first.data(), &head, sizeof head);
  files::write_all(memory, first, name);
  Encoder encoder(tokenizer_);
  std::uint64_t hash = 0;
  try {
    const TokenizerKind kind = tokenizer_.kind();
    hash = head.token_bytes == 1   ? write_tokens<std::uint8_t>(file_, kind, encoder, memory, name)
           : head.token_bytes == 2 ? write_tokens<std::uint16_t>(file_, kind, encoder, memory, name)
                                   : write_tokens<std::int32_t>(file_, kind, encoder, memory, name);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) {
      throw;
    }
    // The text has changed: it now has a character without a token. The comparison of hashes reports it.
  }
  if (hash != hash_) {
    file_.require_unchanged();
    throw Error(ErrorCode::io, fmt::format("{} had other bytes when it was read again: give the job a file that nobody "
                                           "writes to, and start it again",
                                           quoted(file_)));
  }
  files::write_all(memory, std::as_bytes(std::span(json)), name);
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw files::system_error("seal", name, errno);
  }
  return {std::move(memory), file_.path()};
}

TokenizedText read_tokenised(files::SteadyFile file) {
  Head head = {};
  const int seals = ::fcntl(file.descriptor().get(), F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_WRITE) != 0 && file.size() >= tokens_begin) {
    file.read(0, std::as_writable_bytes(std::span(&head, 1)));
  }
  if (std::string_view(head.magic.data(), head.magic.size()) != magic ||
      file.size() != tokens_begin + head.tokens * head.token_bytes + head.tokenizer_bytes) {
    throw Error(ErrorCode::io,
                fmt::format("what another process gave as the tokens of {} is something else", quoted(file)));
  }
  std::string json(head.tokenizer_bytes, '\0');
  file.read(file.size() - json.size(), std::as_writable_bytes(std::span(json)));
  Tokenizer tokenizer = Tokenizer::from_json(json);
  const std::int64_t vocabulary = tokenizer.vocabulary();
  return {std::move(tokenizer),
          TokenStream(std::move(file), {.begin = tokens_begin,
                                        .tokens = static_cast<std::int64_t>(head.tokens),
                                        .token_bytes = head.token_bytes,
                                        .vocabulary = vocabulary}),
          fingerprint_text(head.text_bytes, head.text_hash)};
}

}  // namespace shardrun::data
