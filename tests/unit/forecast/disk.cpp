#include "core/forecast/disk.h"

#include "core/checkpoint/weights.h"
#include "core/train/training.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

namespace {

/// A job and what it writes.
struct Writing {
  TemporaryFolder folder;
  job::Job job = text_job_in(folder);
  compile::Compiled compiled = compile::compile(job);
  forecast::DiskUse use = forecast::disk_use(job, compiled);

  [[nodiscard]] std::string refusal(const forecast::DiskLimits& limits, std::uint64_t arena = 0) const {
    return error_of([&] { forecast::require_disk(job, use, arena, limits); });
  }
};

forecast::DiskLimits room_of(std::uint64_t bytes) {
  return {.room = files::DiskRoom{.bytes = bytes, .of = "the file system of '/full'"}, .file_size = {}};
}

}  // namespace

TEST_CASE("the plan knows the size of the weights to the byte", "[forecast]") {
  Writing writing;
  train::Training training(writing.job, writing.compiled);
  training.initialize();
  const std::filesystem::path path = writing.folder / "w.safetensors";
  const checkpoint::Metadata metadata = checkpoint::describe_model(writing.compiled.model, writing.compiled.settings,
                                                                   writing.compiled.dataset->tokenizer());
  checkpoint::save_states(checkpoint::state_file(path, writing.compiled.graph, graph::StateKind::parameter, metadata),
                          writing.compiled.graph, writing.compiled.partition, training.executor(), 0);
  CHECK(writing.use.result == "weights.safetensors");
  CHECK(writing.use.result_bytes == std::filesystem::file_size(path));
}

TEST_CASE("results that do not fit on the disk are refused, and the error names them", "[forecast]") {
  const Writing writing;
  const std::uint64_t needed = writing.use.result_bytes;
  CHECK_THAT(writing.refusal(room_of(needed - 1)), StartsWith("2: ") && Contains("weights.safetensors would take") &&
                                                       Contains(std::to_string(needed) + " bytes") &&
                                                       Contains("the file system of '/full' has") &&
                                                       Contains("[job] output"));
  CHECK(writing.refusal(room_of(needed)) == "nothing");
  CHECK(forecast::require_disk(writing.job, writing.use, 0, room_of(needed)).size() == 1);  // metrics.jsonl may not fit
  CHECK(forecast::require_disk(writing.job, writing.use, 0, room_of(writing.use.total())).empty());
  CHECK(forecast::require_disk(writing.job, writing.use, 0, {}).empty());
}

TEST_CASE("room for new checkpoints includes the room of older ones", "[forecast]") {
  Writing writing;
  writing.use.checkpoint_bytes = 1000;
  forecast::DiskLimits limits = room_of(writing.use.total() - 600);
  CHECK(forecast::require_disk(writing.job, writing.use, 0, limits).size() == 1);
  limits.older_checkpoints = 600;
  CHECK(forecast::require_disk(writing.job, writing.use, 0, limits).empty());
  limits = room_of(writing.use.total() - 1001);
  limits.older_checkpoints = 5000;  // more than this job's checkpoints: the rest is no room for other files
  CHECK(forecast::require_disk(writing.job, writing.use, 0, limits).size() == 1);
}

TEST_CASE("only checkpoints in the checkpoint folder count as older checkpoints", "[forecast]") {
  Writing writing;
  writing.job.checkpoints.used = true;
  CHECK(forecast::disk_limits(writing.job).older_checkpoints == 0);
  const std::filesystem::path checkpoints = writing.job.output / "checkpoints";
  std::filesystem::create_directories(checkpoints / "step-000004");
  std::filesystem::create_directories(checkpoints / "notes");
  write_file(checkpoints / "step-000004/manifest.json", "12345");
  write_file(checkpoints / "step-000004/rank-0.safetensors", "1234567");
  write_file(checkpoints / "notes/long.txt", std::string(1000, 'x'));
  CHECK(forecast::disk_limits(writing.job).older_checkpoints == 12);
  writing.job.checkpoints.folder = checkpoints;
  CHECK(forecast::disk_limits(writing.job).older_checkpoints == 12);
}

TEST_CASE("checkpoints in a folder of their own are counted on that folder's disk", "[forecast]") {
  Writing writing;
  writing.job.checkpoints.used = true;
  writing.job.checkpoints.folder = writing.folder / "saved";
  const forecast::DiskUse use = forecast::disk_use(writing.job, writing.compiled);
  CHECK(use.checkpoint_bytes > 0);
  CHECK(use.total() == writing.use.total());
  CHECK_THAT(forecast::to_string(use), Contains("; in ") && Contains("saved: checkpoints "));
  CHECK_FALSE(forecast::disk_limits(writing.job).checkpoint_room);  // it is the same disk

  const auto warnings = [&](const forecast::DiskLimits& limits) {
    return forecast::require_disk(writing.job, use, 0, limits);
  };
  CHECK(warnings(room_of(use.total() + use.checkpoint_bytes)).empty());
  CHECK(warnings(room_of(use.total() + use.checkpoint_bytes - 1)).size() == 1);
  forecast::DiskLimits two_disks = room_of(use.total());
  two_disks.checkpoint_room = files::DiskRoom{.bytes = use.checkpoint_bytes, .of = "the file system of '/other'"};
  CHECK(warnings(two_disks).empty());
  --two_disks.checkpoint_room->bytes;
  REQUIRE(warnings(two_disks).size() == 1);
  CHECK_THAT(warnings(two_disks).front(), StartsWith("checkpoints may take ") && Contains("of '/other' has"));
  two_disks.older_checkpoints = 1;
  CHECK(warnings(two_disks).empty());
}

TEST_CASE("folders of one file system have the same disk, and others do not", "[forecast]") {
  const TemporaryFolder folder;
  const std::optional<files::DiskRoom> room = files::disk_room(folder.path());
  const std::optional<files::DiskRoom> below = files::disk_room(folder / "a/b");
  const std::optional<files::DiskRoom> memory = files::disk_room("/dev/shm");
  REQUIRE((room && below && memory));
  CHECK(room->disk == below->disk);
  CHECK((room->disk != memory->disk || folder.path().string().starts_with("/dev/shm")));
}

TEST_CASE("results and arenas that are larger than a file may be are refused", "[forecast]") {
  const Writing writing;
  const std::uint64_t needed = writing.use.result_bytes;
  CHECK_THAT(writing.refusal({.room = {}, .file_size = needed - 1}),
             Contains("weights.safetensors takes") &&
                 Contains("the limit of a file's size (ulimit -f) is " + std::to_string(needed - 1) + " bytes"));
  CHECK_THAT(writing.refusal({.room = {}, .file_size = needed}, needed + 1),
             Contains("the arena of a rank") && Contains("ulimit -f"));
  CHECK(writing.refusal({.room = {}, .file_size = needed}, needed) == "nothing");
}

TEST_CASE("states saved during the run count", "[forecast]") {
  const TemporaryFolder folder;
  const job::Job job = job_in(folder,
                              "[job]\ntask = iterate\noutput = run\n[model]\nname = heat1d\ncells = 100\n"
                              "[iterate]\nsteps = 100\nsave_every = 30\n");
  const forecast::DiskUse use = forecast::disk_use(job, compile::compile(job));
  CHECK(use.result == "state.safetensors");
  CHECK(use.under_way == 3);
  CHECK(use.result_bytes_in_all() == 4 * use.result_bytes);
  CHECK_THAT(error_of([&] { forecast::require_disk(job, use, 0, room_of(3 * use.result_bytes)); }),
             Contains("state.safetensors and 3 states under way ([iterate] save_every) would take"));
}

TEST_CASE("the room of a missing folder is the room of the nearest folder above", "[forecast]") {
  const TemporaryFolder folder;
  const std::optional<files::DiskRoom> room = files::disk_room(folder / "a/b/c");
  REQUIRE(room.has_value());
  CHECK(room->bytes > 0);
  CHECK(room->of == "the file system of '" + folder.path().string() + "'");
}
