#include "core/checkpoint/open_checkpoint.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/checkpoint/folder.h"
#include "core/checkpoint/verify.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/small_checkpoint.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;

namespace {

std::vector<float> read_part(const OpenCheckpoint& checkpoint, const char* name, const mesh::Box& part) {
  std::vector<float> values(static_cast<std::size_t>(part.elements()), -1);
  checkpoint.read(*checkpoint.find(name), part, std::as_writable_bytes(std::span(values)));
  return values;
}

/// The error of a run that loads the checkpoint.
std::string load_error(const std::filesystem::path& folder) {
  return error_of([&] { OpenCheckpoint(folder).check_all_files(); });
}

void flip_byte(const std::filesystem::path& path, std::size_t at) {
  std::string bytes = read_file(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 4);
  write_file(path, bytes);
}

}  // namespace

TEST_CASE("any part of a tensor is read from the pieces that have it", "[checkpoint]") {
  const TemporaryFolder folder;
  const OpenCheckpoint checkpoint(save_small_checkpoint(folder.path()));
  checkpoint.check_all_files();
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t column = 0; column < 3; ++column) {
      for (std::int64_t rows = 1; rows <= 4 - row; ++rows) {
        for (std::int64_t columns = 1; columns <= 3 - column; ++columns) {
          const mesh::Box part{{row, column}, {rows, columns}, {}};
          std::vector<float> expected;
          for (std::int64_t i = 0; i < part.elements(); ++i) {
            expected.push_back(static_cast<float>(part.index_in_whole({4, 3}, i)));
          }
          CHECK(read_part(checkpoint, "w", part) == expected);
        }
      }
    }
  }
  CHECK(read_part(checkpoint, "w", {{0, 0}, {4, 3}, mesh::Interval{5, 9}}) == std::vector<float>{5, 6, 7, 8});
  CHECK(read_part(checkpoint, "w/moment", {{0}, {5}, {}}) == std::vector<float>{0, 1, 2, 3, 4});
  CHECK(read_part(checkpoint, "w/moment", {{2}, {2}, {}}) == std::vector<float>{2, 3});
  CHECK(checkpoint.find("v") == nullptr);
}

TEST_CASE("an open checkpoint can be read while it is removed", "[checkpoint]") {
  const TemporaryFolder folder;
  const OpenCheckpoint checkpoint(save_small_checkpoint(folder.path()));
  remove_old_checkpoints(folder.path(), {}, can_be_opened);
  std::filesystem::remove_all(checkpoint.path());
  checkpoint.check_all_files();
  CHECK(read_part(checkpoint, "w", {{3, 0}, {1, 3}, {}}) == std::vector<float>{9, 10, 11});
}

TEST_CASE("damage is found before anything is loaded, and the file named", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path saved = save_small_checkpoint(folder.path());
  const std::filesystem::path file = saved / "rank-1.safetensors";
  const std::string good = read_file(file);
  CHECK(load_error(saved) == "nothing");
  CHECK(verify_checkpoint(saved).faults.empty());

  for (std::size_t i = 0; i < good.size(); ++i) {
    flip_byte(file, i);
    REQUIRE_THAT(load_error(saved), Contains("rank-1.safetensors' has other bytes than when it was written"));
    REQUIRE(!verify_checkpoint(saved).faults.empty());
    write_file(file, good);
  }
  write_file(file, good.substr(0, good.size() - 1));
  CHECK_THAT(load_error(saved),
             Contains("rank-1.safetensors' has ") &&
                 EndsWith("it was cut short or replaced; 'shardrun checkpoint verify' checks the whole checkpoint"));
  std::filesystem::remove(file);
  CHECK_THAT(load_error(saved), Contains("rank-1.safetensors': No such file"));
  const std::filesystem::path other = save_small_checkpoint(folder.path(), 30, 100);
  std::filesystem::copy_file(other / "rank-1.safetensors", file);
  CHECK_THAT(load_error(saved), Contains("rank-1.safetensors' has other bytes") && Contains("of another checkpoint"));
  std::filesystem::remove(file);
  write_file(folder / "elsewhere", good);
  std::filesystem::create_symlink(folder / "elsewhere", file);
  CHECK_THAT(load_error(saved), Contains("rank-1.safetensors' is a link"));
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  CHECK_THAT(load_error(saved), Contains("rank-1.safetensors' is not a regular file"));

  flip_byte(other / manifest_name, 100);
  CHECK_THAT(load_error(other), Contains("manifest.json': its hash"));
  std::filesystem::rename(other / manifest_name, folder / "manifest");
  std::filesystem::create_symlink(folder / "manifest", other / manifest_name);
  CHECK_THAT(load_error(other), Contains("manifest.json' is a link"));
}

TEST_CASE("verify lists every fault of a checkpoint", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path saved = save_small_checkpoint(folder.path());
  const Verified whole = verify_checkpoint(saved);
  CHECK((whole.files == 2 && whole.tensors == 2));
  CHECK(whole.bytes == file_bytes(read_manifest(saved)));
  flip_byte(saved / "rank-0.safetensors", read_file(saved / "rank-0.safetensors").size() - 1);
  std::filesystem::remove(saved / "rank-1.safetensors");
  const Verified damaged = verify_checkpoint(saved);
  REQUIRE(damaged.faults.size() == 2);
  CHECK_THAT(damaged.faults[0], Contains("rank-0.safetensors' has other bytes"));
  CHECK_THAT(damaged.faults[1], Contains("rank-1.safetensors'"));
  std::filesystem::remove(saved / manifest_name);
  CHECK(verify_checkpoint(saved).faults.size() == 1);
}

TEST_CASE("a checkpoint renamed to another step is refused by runs and by verify", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path saved = save_small_checkpoint(folder.path());
  const std::filesystem::path moved = saved.parent_path() / folder_name(read_manifest(saved).step + 1);
  std::filesystem::rename(saved, moved);
  const std::string renamed = "it was renamed or replaced";
  CHECK_THAT(load_error(moved), Contains(renamed));
  const Verified verified = verify_checkpoint(moved);
  REQUIRE(verified.faults.size() == 1);
  CHECK_THAT(verified.faults[0], Contains(renamed));
  CHECK_THAT(error_of([&] { (void)read_manifest(moved); }), Contains(renamed));
}

TEST_CASE("a manifest that names other pieces than its files have is refused", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path saved = save_small_checkpoint(folder.path());
  const Manifest good = read_manifest(saved);
  const auto error_with = [&](const auto& edit) {
    Manifest edited = good;
    edit(edited);
    replace_manifest(saved, edited);
    return load_error(saved);
  };
  CHECK_THAT(error_with([](Manifest& manifest) { manifest.tensors[0].name = "v"; }),
             Contains("rank-0.safetensors' does not have the pieces that the manifest names: the manifest has v F32 "
                      "[4, 2] at byte ") &&
                 Contains("and the file has w F32 [4, 2] at byte "));
  CHECK_THAT(error_with([](Manifest& manifest) { manifest.tensors[0].dtype = DType::i32; }), Contains("w I32 [4, 2]"));
  CHECK_THAT(error_with([](Manifest& manifest) { manifest.tensors[0].pieces[0].offset += 4; }), Contains("w F32"));
  CHECK_THAT(error_with([](Manifest& manifest) { manifest.tensors[1].pieces.pop_back(); }),
             Contains("rank-1.safetensors'") && Contains("and the file has w/moment F32 [2]"));
  CHECK_THAT(error_with([](Manifest& manifest) {
               std::swap(manifest.tensors[0].pieces[0].box.shape, manifest.tensors[0].shape);
               manifest.tensors[0].pieces.pop_back();
             }),
             Contains("does not lie within") || Contains("does not have the pieces"));
}

TEST_CASE("verify finds elements that lie in two pieces or in none", "[checkpoint]") {
  using Files = std::vector<std::vector<SmallPiece>>;
  const TemporaryFolder folder;
  const SmallPiece moment{1, {{0}, {5}, {}}};
  const auto faults_of = [&](const Files& files) {
    return verify_checkpoint(save_small_checkpoint(folder.path(), 20, 0, files)).faults;
  };
  using Faults = std::vector<std::string>;
  const auto read_error = [&] {
    const OpenCheckpoint checkpoint(folder / "step-000020");
    return error_of([&] { read_part(checkpoint, "w", {{0, 0}, {4, 3}, {}}); });
  };
  const Faults shared = {
      "tensor w: pieces in rank-0.safetensors and rank-1.safetensors have some of the same elements"};

  CHECK(faults_of({{{0, {{0, 0}, {4, 3}, {}}}}, {moment}}).empty());
  CHECK(
      faults_of({{{0, {{0, 0}, {4, 3}, mesh::Interval{0, 7}}}, moment}, {{0, {{0, 0}, {4, 3}, mesh::Interval{7, 12}}}}})
          .empty());
  // Consecutive elements of one box, and another box.
  CHECK(faults_of({{{0, {{0, 0}, {4, 3}, mesh::Interval{0, 6}}}, moment}, {{0, {{2, 0}, {2, 3}, {}}}}}).empty());
  CHECK(read_error() == "nothing");

  CHECK(faults_of({{{0, {{0, 0}, {4, 2}, {}}}, moment}, {{0, {{0, 1}, {4, 2}, {}}}}}) == shared);
  CHECK_THAT(read_error(), Contains("two pieces of tensor w have the same elements"));
  CHECK(faults_of({{{0, {{0, 0}, {4, 3}, mesh::Interval{0, 7}}}, moment},
                   {{0, {{0, 0}, {4, 3}, mesh::Interval{6, 12}}}}}) == shared);
  CHECK(faults_of({{{0, {{0, 0}, {4, 3}, mesh::Interval{0, 7}}}, moment}, {{0, {{2, 0}, {2, 3}, {}}}}}) == shared);
  CHECK(faults_of({{{0, {{0, 0}, {4, 2}, {}}}, moment}, {{0, {{0, 2}, {3, 1}, {}}}}}) ==
        Faults{"tensor w: 1 of its 12 elements lie in no piece"});
  CHECK_THAT(read_error(), Contains("no pieces of tensor w have"));
  CHECK(faults_of({{moment}}) == Faults{"tensor w: 12 of its 12 elements lie in no piece"});
}
