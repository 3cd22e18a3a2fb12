#include "core/checkpoint/folder.h"

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/open_checkpoint.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/small_checkpoint.h"

using namespace shardrun;
using namespace shardrun::checkpoint;
using namespace shardrun::test;
using Catch::Matchers::Contains;

namespace {

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace

TEST_CASE("only whole checkpoints have the name of one, and are listed in order", "[checkpoint]") {
  const TemporaryFolder folder;
  CHECK(list_checkpoints(folder / "none").empty());
  for (const std::int64_t step : {1'000'000, 5, 120}) {
    save_small_checkpoint(folder.path(), step);
  }
  for (const char* other : {".step-000130.tmp", ".step-000110.removed", "step-7", "step-0000140", "step-", "notes"}) {
    std::filesystem::create_directory(folder / other);
  }
  std::filesystem::remove(folder / "step-000005" / manifest_name);
  std::vector<std::pair<std::int64_t, bool>> listed;
  for (const Listed& each : list_checkpoints(folder.path())) {
    listed.emplace_back(each.step, each.has_manifest);
  }
  CHECK(listed == std::vector<std::pair<std::int64_t, bool>>{{5, false}, {120, true}, {1'000'000, true}});
}

TEST_CASE("a path names a checkpoint, a folder of some, or a run's folder", "[checkpoint]") {
  const TemporaryFolder run;
  const std::filesystem::path root = run / "checkpoints";
  save_small_checkpoint(root, 5);
  save_small_checkpoint(root, 20);
  save_small_checkpoint(root, 30);
  std::filesystem::remove(root / "step-000030" / manifest_name);
  CHECK(find_checkpoint(run.path()) == root / "step-000020");
  CHECK(find_checkpoint(root) == root / "step-000020");
  CHECK(find_checkpoint(root / "step-000005") == root / "step-000005");
  CHECK(find_checkpoint(root / "step-000005/").native() == (root / "step-000005").native());
  CHECK_THAT(error_of([&] { static_cast<void>(find_checkpoint(root / "step-000030")); }), Contains("is no checkpoint"));
  CHECK_THAT(error_of([&] { static_cast<void>(find_checkpoint(run / "elsewhere")); }), Contains("is no checkpoint"));
  std::filesystem::rename(root / "step-000005", run / "kept");
  CHECK(find_checkpoint(run / "kept") == run / "kept");
  CHECK(checkpoints_at(run / "kept").front().step == -1);
}

TEST_CASE("a checkpoint of the same step is replaced as a whole", "[checkpoint]") {
  const TemporaryFolder folder;
  save_small_checkpoint(folder.path(), 20, 0);
  const Manifest first = read_manifest(folder / "step-000020");
  save_small_checkpoint(folder.path(), 20, 100);
  CHECK(read_manifest(folder / "step-000020").files != first.files);
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-000020"});
  CHECK(names_in(folder / "step-000020") ==
        std::set<std::string>{"manifest.json", "rank-0.safetensors", "rank-1.safetensors"});
}

TEST_CASE("a checkpoint that lacks bytes is not made whole", "[checkpoint]") {
  const TemporaryFolder folder;
  Manifest manifest = read_manifest(save_small_checkpoint(folder.path(), 20));
  manifest.step = 30;
  const auto error_with = [&](const char* bytes) {
    const std::filesystem::path begun = begin_checkpoint(folder.path(), 30);
    write_file(begun / "rank-0.safetensors", std::string(manifest.files[0].bytes, 'x'));
    if (bytes != nullptr) {
      write_file(begun / "rank-1.safetensors", bytes);
    }
    return error_of([&] { commit_checkpoint(folder.path(), manifest); });
  };
  CHECK_THAT(error_with(nullptr), Contains("rank-1.safetensors' is not there for the first rank"));
  CHECK_THAT(error_with("xyz"), Contains("rank-1.safetensors' has 3 bytes, and its rank wrote"));
  CHECK(list_checkpoints(folder.path()).size() == 1);
  remove_unfinished_checkpoints(folder.path());
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-000020"});
}

TEST_CASE("the newest checkpoints are kept, and those at a multiple of keep_every", "[checkpoint]") {
  const TemporaryFolder folder;
  const auto kept_with = [&](const Keeping& keeping, bool damage_newest) {
    for (std::int64_t step = 10; step <= 60; step += 10) {
      save_small_checkpoint(folder.path(), step);
    }
    if (damage_newest) {
      std::filesystem::remove(folder / "step-000060" / manifest_name);
    }
    remove_old_checkpoints(folder.path(), keeping, can_be_opened);
    std::vector<std::int64_t> steps;
    for (const Listed& each : list_checkpoints(folder.path())) {
      steps.push_back(each.step);
    }
    CHECK(names_in(folder.path()).size() == steps.size());
    return steps;
  };
  using Steps = std::vector<std::int64_t>;
  CHECK(kept_with({.newest = 0, .every = 20}, false) == Steps{10, 20, 30, 40, 50, 60});
  CHECK(kept_with({.newest = 9}, false) == Steps{10, 20, 30, 40, 50, 60});
  CHECK(kept_with({.newest = 2}, false) == Steps{50, 60});
  CHECK(kept_with({.newest = 1, .every = 20}, false) == Steps{20, 40, 60});
  CHECK(kept_with({.newest = 2}, true) == Steps{40, 50, 60});  // one that is not whole does not count
}

TEST_CASE("a checkpoint set aside is no longer listed, and replaces none that was set aside before", "[checkpoint]") {
  const TemporaryFolder folder;
  for (const char* aside : {"step-000005.damaged", "step-000005.damaged-2"}) {
    save_small_checkpoint(folder.path(), 5);
    CHECK(set_aside(folder / "step-000005") == folder / aside);
  }
  CHECK(list_checkpoints(folder.path()).empty());
  CHECK(names_in(folder.path()) == std::set<std::string>{"step-000005.damaged", "step-000005.damaged-2"});
  remove_unfinished_checkpoints(folder.path());
  CHECK(names_in(folder.path()).size() == 2);
}

TEST_CASE("a checkpoint that cannot be read does not count as kept, and is not removed", "[checkpoint]") {
  const TemporaryFolder folder;
  using Damage = std::function<void(const std::filesystem::path&)>;
  const std::vector<std::pair<const char*, Damage>> damages = {
      {"another manifest", [](const auto& saved) { write_file(saved / manifest_name, "{}"); }},
      {"a missing file", [](const auto& saved) { std::filesystem::remove(saved / "rank-1.safetensors"); }},
      {"a file that is cut short", [](const auto& saved) { write_file(saved / "rank-0.safetensors", "xyz"); }},
  };
  for (const auto& [name, damage] : damages) {
    INFO(name);
    for (std::int64_t step = 10; step <= 60; step += 10) {
      const std::filesystem::path saved = save_small_checkpoint(folder.path(), step);
      CHECK(can_be_opened(saved));
      if (step == 20 || step == 50 || step == 60) {
        damage(saved);
        CHECK_FALSE(can_be_opened(saved));
      }
    }
    remove_old_checkpoints(folder.path(), {.newest = 2}, can_be_opened);
    CHECK(names_in(folder.path()) ==
          std::set<std::string>{"step-000020", "step-000030", "step-000040", "step-000050", "step-000060"});
  }
  CHECK_FALSE(can_be_opened(folder / "none"));
}
