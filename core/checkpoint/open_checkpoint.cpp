#include "core/checkpoint/open_checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <compare>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/folder.h"
#include "core/files/folder.h"
#include "core/files/mapped_file.h"
#include "core/mesh/rows.h"

namespace shardrun::checkpoint {
namespace {

constexpr std::size_t block_bytes = std::size_t{4} << 20U;

/// The longest gap between wanted bytes, in bytes, for which one read over the gap is faster than two reads.
constexpr std::size_t longest_gap = std::size_t{64} << 10U;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::data, what); }

/// Runs a check. If it throws, adds advice for the user to the error's message.
template <typename Check>
void advised(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    throw Error(error.code(), error.message() + "; 'shardrun checkpoint verify' checks the whole checkpoint");
  }
}

/// A tensor in a file, in a form that can be compared.
struct Held {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset;

  auto operator<=>(const Held&) const = default;
};

std::string text_of(const Held& held) {
  return fmt::format("{} {} [{}] at byte {}", held.name, to_string(held.dtype), fmt::join(held.shape, ", "),
                     held.offset);
}

/// The tensors that a file must contain, according to the manifest.
std::vector<Held> expected_in(const Manifest& manifest, std::size_t file) {
  std::vector<Held> expected;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const Piece& piece : tensor.pieces) {
      if (piece.file == file) {
        expected.push_back({tensor.name, tensor.dtype, piece.box.part_shape(), piece.offset});
      }
    }
  }
  std::ranges::sort(expected);
  return expected;
}

std::vector<Held> found_in(const files::SteadyFile& file) {
  const files::MappedFile mapped(file.descriptor(), file.size(), file.path());
  std::vector<Held> found;
  for (const Tensor& tensor : parse_safetensors(file, mapped.bytes()).tensors) {
    found.push_back({tensor.info.name, tensor.info.dtype, tensor.info.shape,
                     static_cast<std::uint64_t>(tensor.bytes.data() - mapped.bytes().data())});
  }
  std::ranges::sort(found);
  return found;
}

/// A range of bytes to read: where it is in the file, and where it belongs in the result.
struct Wanted {
  std::uint64_t from = 0;
  std::size_t to = 0;
  std::size_t bytes = 0;
};

/// Reads the wanted ranges of a file, in order of `from`. Ranges with small gaps are read together.
void read_wanted(const files::SteadyFile& file, std::span<const Wanted> wanted, std::span<std::byte> to,
                 std::vector<std::byte>& block) {
  while (!wanted.empty()) {
    stop_point();
    const Wanted& first = wanted.front();
    if (first.bytes >= longest_gap) {
      file.read(first.from, to.subspan(first.to, first.bytes));
      wanted = wanted.subspan(1);
      continue;
    }
    std::size_t count = 1;
    std::uint64_t end = first.from + first.bytes;
    while (count < wanted.size() && wanted[count].from <= end + longest_gap &&
           wanted[count].from + wanted[count].bytes - first.from <= block_bytes) {
      end = wanted[count].from + wanted[count].bytes;
      ++count;
    }
    block.resize(static_cast<std::size_t>(end - first.from));
    file.read(first.from, block);
    for (const Wanted& each : wanted.first(count)) {
      std::memcpy(to.data() + each.to, block.data() + (each.from - first.from), each.bytes);
    }
    wanted = wanted.subspan(count);
  }
}

/// Throws Error{data} unless the intervals contain each of the part's elements exactly once.
void require_whole(std::vector<mesh::Interval>& given, const StoredTensor& tensor, std::int64_t elements,
                   const std::filesystem::path& path) {
  std::ranges::sort(given, {}, &mesh::Interval::begin);
  std::int64_t end = 0;
  for (const mesh::Interval& each : given) {
    if (each.begin != end) {
      refuse(fmt::format("'{}': {} pieces of tensor {} have the same elements", files::shown(path).native(),
                         each.begin < end ? "two" : "no", tensor.name));
    }
    end = each.end;
  }
  if (end != elements) {
    refuse(fmt::format("'{}': no pieces of tensor {} have some of its elements", files::shown(path).native(),
                       tensor.name));
  }
}

}  // namespace

files::SteadyFile open_stored(const std::filesystem::path& path) {
  files::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open() && errno == ELOOP) {
    refuse(fmt::format("'{}' is a link, and the files of a checkpoint are regular files", files::shown(path).native()));
  }
  if (!file.is_open()) {
    throw files::unreadable("read", path, errno);
  }
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    refuse(fmt::format("'{}' is not a regular file", files::shown(path).native()));
  }
  return {std::move(file), path};
}

files::SteadyFile open_stored(const std::filesystem::path& folder, const StoredFile& stored) {
  files::SteadyFile file = open_stored(folder / stored.name);
  if (file.size() != stored.bytes) {
    refuse(fmt::format("'{}' has {} bytes, and the manifest says {}: it was cut short or replaced",
                       files::shown(file.path()).native(), file.size(), stored.bytes));
  }
  return file;
}

std::string manifest_text(const std::filesystem::path& folder) {
  constexpr std::size_t most_bytes = std::size_t{1} << 30U;
  const files::SteadyFile file = open_stored(folder / manifest_name);
  if (file.size() > most_bytes) {
    refuse(fmt::format("'{}' has {} bytes, and no manifest has more than {}", files::shown(file.path()).native(),
                       file.size(), most_bytes));
  }
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

namespace {

/// Parses the text of a manifest, and compares its step with the folder's name.
Manifest manifest_of(const std::string& text, const std::filesystem::path& folder) {
  Manifest manifest = parse_manifest(text, files::shown(folder / manifest_name).native());
  const std::optional<std::int64_t> named = step_of_folder(folder.filename().native());
  if (named && *named != manifest.step) {
    refuse(fmt::format("'{}' has the checkpoint of step {}: it was renamed or replaced", files::shown(folder).native(),
                       manifest.step));
  }
  return manifest;
}

}  // namespace

Manifest read_manifest(const std::filesystem::path& folder) { return manifest_of(manifest_text(folder), folder); }

void check_hash(const files::SteadyFile& file, const files::Hash& expected) {
  files::Hasher hasher;
  std::vector<std::byte> block;
  for (std::size_t at = 0; at < file.size(); at += block.size()) {
    stop_point();
    block.resize(std::min(block_bytes, file.size() - at));
    file.read(at, block);
    hasher.add(block);
  }
  if (hasher.hash() != expected) {
    refuse(
        fmt::format("'{}' has other bytes than when it was written (hash {}, expected {}): it was damaged, or is of "
                    "another checkpoint",
                    files::shown(file.path()).native(), to_string(hasher.hash()), to_string(expected)));
  }
}

void check_pieces(const files::SteadyFile& file, const Manifest& manifest, std::size_t index) {
  const std::vector<Held> expected = expected_in(manifest, index);
  const std::vector<Held> found = found_in(file);
  const auto [in_manifest, in_file] = std::ranges::mismatch(expected, found);
  if (in_manifest != expected.end() || in_file != found.end()) {
    refuse(fmt::format(
        "'{}' does not have the pieces that the manifest names: the manifest has {}, and the file has "
        "{}",
        files::shown(file.path()).native(), in_manifest == expected.end() ? "no other" : text_of(*in_manifest),
        in_file == found.end() ? "no other" : text_of(*in_file)));
  }
}

OpenCheckpoint::OpenCheckpoint(std::filesystem::path folder) : path_(std::move(folder)) {
  advised([&] {
    const std::string text = manifest_text(path_);
    manifest_ = manifest_of(text, path_);
    hash_ = files::hash_of(text);
    for (std::size_t number = 0; number < manifest_.files.size(); ++number) {
      static_cast<void>(file(number));
    }
  });
}

bool can_be_opened(const std::filesystem::path& folder) {
  try {
    static_cast<void>(OpenCheckpoint(folder));
    return true;
  } catch (const Error&) {
    return false;
  }
}

const files::SteadyFile& OpenCheckpoint::file(std::size_t number) const {
  constexpr std::size_t most_open = 64;  // far below the usual limit for open files
  const auto found = open_.find(number);
  if (found != open_.end()) {
    return found->second;
  }
  if (open_.size() == most_open) {
    open_.clear();
  }
  return open_.emplace(number, open_stored(path_, manifest_.files[number])).first->second;
}

const StoredTensor* OpenCheckpoint::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(manifest_.tensors, name, &StoredTensor::name);
  return found == manifest_.tensors.end() ? nullptr : &*found;
}

void OpenCheckpoint::check_file(std::size_t number) const {
  advised([&] {
    check_hash(file(number), manifest_.files[number].hash);
    check_pieces(file(number), manifest_, number);
  });
}

void OpenCheckpoint::release() const noexcept {
  open_.clear();
  manifest_.tensors = std::vector<StoredTensor>();  // clear() would keep the memory
  manifest_.files = std::vector<StoredFile>();
}

void OpenCheckpoint::check_all_files() const {
  for (std::size_t number = 0; number < manifest_.files.size(); ++number) {
    check_file(number);
  }
}

void OpenCheckpoint::read(const StoredTensor& tensor, const mesh::Box& part, std::span<std::byte> to) const {
  const std::vector<mesh::Row> rows = mesh::rows_of(tensor.shape, part);
  const std::size_t element = element_bytes(tensor.dtype);
  std::vector<mesh::Interval> given;
  std::vector<Wanted> wanted;
  std::vector<std::byte> block;
  for (const Piece& piece : tensor.pieces) {
    if (!mesh::overlap(piece.box, part)) {
      continue;
    }
    wanted.clear();
    for (const mesh::SharedRow& shared : mesh::shared_rows(rows, mesh::rows_of(tensor.shape, piece.box))) {
      given.push_back({shared.in_first, shared.in_first + shared.count});
      wanted.push_back({.from = piece.offset + static_cast<std::uint64_t>(shared.in_second) * element,
                        .to = static_cast<std::size_t>(shared.in_first) * element,
                        .bytes = static_cast<std::size_t>(shared.count) * element});
    }
    if (!wanted.empty() && wanted.back().to + wanted.back().bytes > to.size()) {
      throw Error(ErrorCode::internal,
                  fmt::format("{} bytes do not hold the part of tensor {}", to.size(), tensor.name));
    }
    read_wanted(file(piece.file), wanted, to, block);
  }
  require_whole(given, tensor, part.elements(), path_);
}

std::filesystem::path find_checkpoint(const std::filesystem::path& given) {
  const std::vector<Listed> listed = checkpoints_at(given);
  const auto newest =
      std::find_if(listed.rbegin(), listed.rend(), [](const Listed& each) { return each.has_manifest; });
  if (newest == listed.rend()) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' is no checkpoint, no folder of checkpoints and no folder of a run that has saved "
                            "one: a checkpoint is a folder such as step-000120 with a {}",
                            files::shown(given).native(), manifest_name));
  }
  return newest->path;
}

}  // namespace shardrun::checkpoint
