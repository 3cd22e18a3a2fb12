#include "core/train/checkpointing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/process.h"
#include "core/checkpoint/folder.h"
#include "core/device/hash.h"
#include "core/files/folder.h"
#include "core/files/sequential_file.h"
#include "core/train/rank_link.h"

namespace shardrun::train {
namespace {

/// A message to other ranks about a failure begins with this word. Others are "ok", or a file's size and hash.
constexpr std::string_view failed_word = "failed ";

/// Bytes of a snapshot that are written at once. An abort is noticed between two such blocks.
constexpr std::size_t write_bytes = std::size_t{32} << 20U;

/// Bytes per second that every disk is assumed to write, until this run has saved once.
constexpr double least_rate = 100e6;

std::uint64_t bytes_of(const std::vector<checkpoint::StoredFile>& files) {
  std::uint64_t bytes = 0;
  for (const checkpoint::StoredFile& file : files) {
    bytes += file.bytes;
  }
  return bytes;
}

Due::Clock::time_point after(Due::Clock::time_point time, double seconds) {
  constexpr double most = 1e9;  // because a clock counts nanoseconds in 64 bits
  return time + std::chrono::duration_cast<Due::Clock::duration>(
                    std::chrono::duration<double>(std::clamp(seconds, -most, most)));
}

void require_ok(const std::string& answer) {
  if (answer.starts_with(failed_word)) {
    throw Error(ErrorCode::io, answer.substr(failed_word.size()));
  }
}

checkpoint::StoredFile file_of(const std::string& answer, std::int64_t rank) {
  require_ok(answer);
  std::istringstream words(answer);
  std::string hash;
  checkpoint::StoredFile file{.name = checkpoint::rank_file_name(rank)};
  words >> file.bytes >> hash;
  const std::optional<files::Hash> parsed = files::parse_hash(hash);
  if (!parsed) {
    throw Error(ErrorCode::internal, fmt::format("rank {} says of its file '{}'", rank, answer));
  }
  file.hash = *parsed;
  return file;
}

/// The job as text, with the output folder's path as people see it.
std::string job_text(job::Job job) {
  job.output = files::shown(job.output);
  return job::canonical_text(job);
}

std::string mesh_text(const mesh::Mesh& mesh) {
  std::string text;
  for (const mesh::Axis& axis : mesh.axes) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis.name, axis.size);
  }
  return mesh.order.empty() ? text : fmt::format("{}, order {}", text, fmt::join(mesh.order, " "));
}

}  // namespace

Checkpointing::Checkpointing(const job::Job& job, const compile::Compiled& compiled, const StepSettings& settings,
                             const runtime::Executor& executor, metrics::Record& record)
    : job_(job),
      compiled_(compiled),
      settings_(settings),
      executor_(executor),
      record_(record),
      contents_(compile::contents_of(job, compiled)),
      file_(contents_, settings.link.rank()),
      run_(compile::identity_of(job, compiled)) {
  record_.summary.checkpoints.emplace();
  if (compiled.resumed != nullptr) {
    last_whole_ = compiled.resumed->manifest().step;
  }
  tell_counts();
  if (checkpoint::takes_snapshots(job)) {
    snapshot_ = device::Device::find("cpu").allocate(file_.bytes());
    std::memset(snapshot_->data(), 0, file_.bytes());  // so that the first save takes no longer than others
    record_.summary.ranks[0].snapshot_bytes = file_.snapshot_bytes();
    record_.summary.ranks[0].snapshot_peak_bytes = snapshot_->touched_bytes();
  }
}

/// A run that fails lets a save in progress go on for 5 seconds, or half of [job] timeout if that is shorter. Then it
/// abandons the save.
Checkpointing::~Checkpointing() {
  const auto latest =
      Clock::now() + std::min<Clock::duration>(
                         std::chrono::seconds(5),
                         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(job_.timeout / 2)));
  while (writer_.joinable() && !written_ && Clock::now() < latest) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  abandoned_ = true;
  if (writer_.joinable()) {
    writer_.join();
  }
}

std::string Checkpointing::published(const std::string& name) const {
  constexpr std::chrono::milliseconds patience{1000};
  for (;;) {
    try {
      return settings_.link.published(name, launch::Rank::Clock::now() + patience);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::timeout) {
        throw;
      }
    }
    if (abandoned_) {
      throw Error(ErrorCode::aborted, "the run has failed");
    }
  }
}

bool Checkpointing::is_first() const noexcept { return settings_.link.rank() == 0; }

bool Checkpointing::is_due(std::int64_t steps) const noexcept {
  return job_.checkpoints.every > 0 && steps % job_.checkpoints.every == 0;
}

Due Checkpointing::due(int steps_to_come) {
  Due due;
  if (is_first() && job_.checkpoints.minutes > 0) {
    due.save = after(last_begin_, job_.checkpoints.minutes * 60);
  }
  if (is_first() && settings_.ends_by) {
    const std::chrono::duration<double> left = *settings_.ends_by - std::chrono::system_clock::now();
    const Clock::time_point now = Clock::now();
    due.end = after(now, left.count() - margin(now, steps_to_come));
  }
  return due;
}

double Checkpointing::margin(Clock::time_point now, int steps_to_come) {
  std::uint64_t bytes = 0;
  for (const checkpoint::SavedTensor& saved : contents_.tensors) {
    bytes += checkpoint::tensor_bytes({saved.tensor.name, saved.tensor.dtype, saved.tensor.shape}).value_or(0);
  }
  const double save = longest_save_ > 0 ? longest_save_ : static_cast<double>(bytes) / least_rate;
  return lead_time_.look(now, save, writer_.joinable() && !written_, steps_to_come);
}

void Checkpointing::save(const checkpoint::Position& position, bool at_end) {
  await_writer();
  const auto begin = Clock::now();
  last_begin_ = begin;
  const std::int64_t number = saves_++;
  written_ = false;
  outcome_.reset();
  if (snapshot_ == nullptr || at_end) {
    record_.now_at(fmt::format("saving a checkpoint of step {}", position.step));
    outcome_ = write(position, number, [this](const auto& take) {
      file_.stream(executor_, take);
      executor_.verify_states();
    });
    written_ = true;
    if (!outcome_->failure.empty()) {
      executor_.verify_states();  // damaged memory ends the run, even if a failed save does not
    }
    record_.summary.checkpoints->stall_s += metrics::seconds_since(begin);
    if (outcome_->ended) {
      throw Error(ErrorCode::aborted, outcome_->failure);
    }
    tell(*outcome_);
    return;
  }
  copy();
  executor_.verify_states();
  const std::uint64_t copied = hash_of_copy();
  record_.summary.checkpoints->stall_s += metrics::seconds_since(begin);
  const auto write_copy = [this, position, number, copied] {
    outcome_ = write(position, number, [this, copied](const auto& take) {
      std::span<const std::byte> rest(snapshot_->data(), file_.bytes());
      while (!rest.empty()) {
        take(rest.first(std::min(rest.size(), write_bytes)));
        rest = rest.subspan(std::min(rest.size(), write_bytes));
      }
      if (hash_of_copy() != copied) {
        throw Error(
            ErrorCode::damaged,
            fmt::format("the bits of its copy of the states have changed in the memory of host {}", host_name()));
      }
    });
    written_ = true;
  };
  try {
    writer_ = thread_without_signals("the writer of checkpoints", write_copy);
  } catch (const Error&) {  // this thread writes then: the other ranks wait for this rank's file
    write_copy();
    tell(*outcome_);
  }
}

void Checkpointing::require_whole(std::int64_t step) const {
  if (is_first() && last_whole_ != step) {
    throw Error(
        ErrorCode::unsaved,
        fmt::format("the checkpoint of step {} could not be written: {}. {}", step, outcome_->failure,
                    last_whole_ < 0 ? "There is no other" : fmt::format("The newest is of step {}", last_whole_)));
  }
}

/// Copies this rank's part of the states, as they are now, to `snapshot_`.
void Checkpointing::copy() {
  std::byte* to = snapshot_->data();
  file_.stream(executor_, [&to](std::span<const std::byte> bytes) {
    std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  });
}

std::uint64_t Checkpointing::hash_of_copy() const {
  return job_.checks.states ? device::hash_of({snapshot_->data(), file_.bytes()}) : 0;
}

void Checkpointing::await_writer() {
  if (!writer_.joinable()) {
    return;
  }
  if (written_) {
    writer_.join();
  } else {
    record_.now_at("waiting for the checkpoint that is still being written");
    const auto begin = Clock::now();
    writer_.join();
    const double waited = metrics::seconds_since(begin);
    record_.summary.checkpoints->stall_s += waited;
    record_.say(fmt::format("waited {} for an earlier checkpoint to be written: save less often, or to a faster disk",
                            human_time(waited)));
  }
  tell(*outcome_);
}

void Checkpointing::look() {
  if (written_) {
    await_writer();
  }
}

void Checkpointing::tell_counts() {
  if (!is_first()) {
    return;
  }
  const metrics::CheckpointSummary& summary = *record_.summary.checkpoints;
  record_.tell(std::array<metrics::JsonField, 2>{
      {{"checkpoints_saved", summary.saved}, {"checkpoints_failed", summary.failed}}});
  if (last_whole_ >= 0) {
    record_.tell(std::array<metrics::JsonField, 1>{{{"checkpoint_step", last_whole_}}});
  }
}

void Checkpointing::tell(const Outcome& outcome) {
  if (outcome.ended) {
    return;
  }
  metrics::CheckpointSummary& summary = *record_.summary.checkpoints;
  longest_save_ = std::max(longest_save_, outcome.seconds);
  if (outcome.failure.empty()) {
    ++summary.saved;
    summary.bytes = outcome.bytes;
    summary.last_step = last_whole_ = outcome.step;
    tell_counts();
    record_.say(fmt::format(
        "checkpoint of step {}: {} in {} ({}/s)", outcome.step, human_bytes(outcome.bytes), human_time(outcome.seconds),
        human_bytes(static_cast<std::uint64_t>(static_cast<double>(outcome.bytes) / std::max(outcome.seconds, 1e-6)))));
    if (!outcome.notice.empty()) {
      record_.say(fmt::format("warning: an older checkpoint could not be removed: {}", outcome.notice));
    }
    return;
  }
  ++summary.failed;
  tell_counts();
  record_.say(
      fmt::format("warning: the checkpoint of step {} could not be written: {}", outcome.step, outcome.failure));
  if (job_.checkpoints.on_failure == job::SaveFailure::stop && is_first()) {
    throw Error(ErrorCode::unsaved,
                fmt::format("the checkpoint of step {} could not be written, and [checkpoint] on_failure "
                            "is stop: {}",
                            outcome.step, outcome.failure));
  }
}

Checkpointing::Outcome Checkpointing::write(const checkpoint::Position& position, std::int64_t number,
                                            const Stream& stream) {
  const auto begin = Clock::now();
  Outcome outcome{.step = position.step};
  const std::string key = fmt::format("checkpoint/{}", number);
  try {
    if (is_first()) {
      write_as_first(position, key, stream, outcome);
    } else {
      write_as_other(position, key, stream, outcome);
    }
  } catch (const std::exception& error) {  // an error of the store: the job has ended
    outcome.ended = true;
    outcome.failure = error.what();
  }
  outcome.seconds = metrics::seconds_since(begin);
  return outcome;
}

/// The others get two messages about the first rank's attempt: that the folder exists, and the outcome.
void Checkpointing::write_as_first(const checkpoint::Position& position, const std::string& key, const Stream& stream,
                                   Outcome& outcome) {
  const std::filesystem::path root = checkpoint::checkpoint_folder(job_);
  const std::int64_t ranks = settings_.link.world_size();
  const auto publish = [&](const char* name, const std::string& failure) {
    settings_.link.publish(fmt::format("{}/{}", key, name),
                           failure.empty() ? "ok" : fmt::format("{}{}", failed_word, failure));
  };
  const auto attempt = [&](const auto& work) {
    try {
      if (outcome.failure.empty()) {
        work();
      }
    } catch (const std::exception& error) {
      outcome.failure = error.what();
    }
  };
  attempt([&] {
    settings_.folder.require_owned();
    static_cast<void>(checkpoint::begin_checkpoint(root, position.step));
  });
  publish("begun", outcome.failure);
  std::vector<checkpoint::StoredFile> files;
  attempt([&] { files.push_back(write_own(position.step, stream)); });
  for (std::int64_t other = 1; other < ranks; ++other) {
    const std::string answer = published(fmt::format("{}/{}", key, other));
    attempt([&] { files.push_back(file_of(answer, other)); });
  }
  attempt([&] {
    settings_.folder.require_owned();
    checkpoint::commit_checkpoint(root, manifest_of(position, files));
  });
  if (!outcome.failure.empty()) {
    checkpoint::remove_unfinished_checkpoints(root);
  }
  outcome.bytes = bytes_of(files);
  const std::string made = std::exchange(outcome.failure, "");
  if (made.empty()) {
    whole_.insert(position.step);
    attempt([&] { remove_old(root); });
    outcome.notice = std::exchange(outcome.failure, "");  // the checkpoint is complete even so
  }
  outcome.failure = made;
  publish("end", outcome.failure);
}

/// Opens a checkpoint only if `whole_` lacks it. Drops checkpoints from `whole_` once they are removed.
void Checkpointing::remove_old(const std::filesystem::path& root) {
  checkpoint::remove_old_checkpoints(
      root, {job_.checkpoints.keep, job_.checkpoints.keep_every}, [this](const std::filesystem::path& saved) {
        const std::int64_t step = checkpoint::step_of_folder(saved.filename().native()).value_or(-1);
        return whole_.contains(step) || (checkpoint::can_be_opened(saved) && whole_.insert(step).second);
      });
  std::error_code none;
  std::erase_if(
      whole_, [&](std::int64_t step) { return !std::filesystem::exists(root / checkpoint::folder_name(step), none); });
}

void Checkpointing::write_as_other(const checkpoint::Position& position, const std::string& key, const Stream& stream,
                                   Outcome& outcome) {
  const std::string own = fmt::format("{}/{}", key, settings_.link.rank());
  const std::string begun = published(fmt::format("{}/begun", key));
  std::string answer = begun;
  try {
    require_ok(begun);
    const checkpoint::StoredFile file = write_own(position.step, stream);
    outcome.bytes = file.bytes;
    answer = fmt::format("{} {}", file.bytes, to_string(file.hash));
  } catch (const std::exception& error) {
    answer = fmt::format("{}rank {}: {}", failed_word, settings_.link.rank(), error.what());
  }
  settings_.link.publish(own, answer);
  const std::string end = published(fmt::format("{}/end", key));
  if (end.starts_with(failed_word)) {
    outcome.failure = end.substr(failed_word.size());
  }
}

checkpoint::StoredFile Checkpointing::write_own(std::int64_t step, const Stream& stream) const {
  const std::int64_t rank = settings_.link.rank();
  checkpoint::StoredFile stored{.name = checkpoint::rank_file_name(rank), .bytes = file_.bytes()};
  files::SequentialFile file(checkpoint::unfinished_path(checkpoint::checkpoint_folder(job_), step) / stored.name,
                             stored.bytes);
  stream([&](std::span<const std::byte> bytes) {
    if (abandoned_) {
      throw Error(ErrorCode::aborted, "the run has failed");
    }
    file.write(bytes);
  });
  stored.hash = file.finish();
  return stored;
}

checkpoint::Manifest Checkpointing::manifest_of(const checkpoint::Position& position,
                                                std::vector<checkpoint::StoredFile> files) const {
  checkpoint::Manifest manifest{.step = position.step,
                                .samples = position.samples,
                                .base = compiled_.saved_state.steps,
                                .evaluated = position.evaluated,
                                .loss = position.loss,
                                .val_loss = position.val_loss,
                                .run = run_,
                                .strategy = compiled_.plan.strategy,
                                .mesh = mesh_text(compiled_.partition.placements.mesh),
                                .precision = job_.train.precision == job::Precision::mixed ? "mixed" : "float32",
                                .job = job_text(job_)};
  describe(contents_, std::move(files), manifest);
  return manifest;
}

checkpoint::Position first_position(const compile::Compiled& compiled) {
  if (compiled.resumed == nullptr) {
    return {};
  }
  const checkpoint::Manifest& manifest = compiled.resumed->manifest();
  return {.step = manifest.step,
          .samples = manifest.samples,
          .evaluated = manifest.evaluated,
          .loss = manifest.loss,
          .val_loss = manifest.val_loss};
}

void load_resumed(const job::Job& job, const compile::Compiled& compiled, const runtime::Executor& executor,
                  RankLink& link) {
  const checkpoint::OpenCheckpoint& checkpoint = *compiled.resumed;
  const auto ranks = static_cast<std::size_t>(link.world_size());
  const auto rank = static_cast<std::size_t>(link.rank());
  std::string damaged;
  try {
    for (std::size_t file = rank; file < checkpoint.manifest().files.size(); file += ranks) {
      checkpoint.check_file(file);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) {
      throw;
    }
    damaged = error.message();
  }
  link.barrier();  // because reading can take some ranks longer than [job] timeout
  damaged = link.made_of_all("checkpoint/damaged", damaged, [](const std::vector<std::string>& of_ranks) {
    const auto first = std::ranges::find_if(of_ranks, [](const std::string& text) { return !text.empty(); });
    return first == of_ranks.end() ? "" : *first;
  });
  if (!damaged.empty()) {
    const bool is_left_to_launcher = job.restarts > 0 && !link.is_hosted();
    throw Error(ErrorCode::data,
                damaged + (is_left_to_launcher ? ""
                                               : ". Remove that checkpoint's folder: --resume then takes "
                                                 "the one before"));
  }
  if (compiled.engine != nullptr) {
    checkpoint::load_states(checkpoint, compile::held_tensors(*compiled.engine, compiled.graph), executor, link.rank());
  } else {
    checkpoint::load_states(checkpoint, compiled.graph, compiled.partition, executor, link.rank());
  }
  checkpoint.release();
}

void LeadTime::step_took(double seconds) noexcept { longest_step_ = std::max(longest_step_, seconds); }

double LeadTime::look(Time now, double save, bool saves_now, int steps_to_come) noexcept {
  constexpr double caution = 1.5;
  const std::chrono::duration<double> away = now - std::exchange(last_look_, now);
  longest_away_ = std::max(longest_away_, away.count());
  return caution * (save + longest_away_ + steps_to_come * longest_step_) + (saves_now ? save : 0) + 1;
}

}  // namespace shardrun::train
