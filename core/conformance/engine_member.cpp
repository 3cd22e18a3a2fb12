#include "core/conformance/engine_member.h"

#include <fmt/format.h>
#include <shardrun/engine.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "core/base/error.h"
#include "core/conformance/conformance.h"
#include "core/conformance/member.h"
#include "core/conformance/plugin_options.h"
#include "core/device/host_memory.h"
#include "core/runtime/collectives.h"
#include "core/runtime/flight_recorder.h"

namespace shardrun::conformance {
namespace {

/// Sets the sizes of data that are given by "key=value" settings.
void set_sizes(plugins::EngineRequest& request, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const std::size_t sign = setting.find('=');
    std::int64_t* const size = setting.starts_with("data.features=")  ? &request.features
                               : setting.starts_with("data.outputs=") ? &request.outputs
                                                                      : nullptr;
    if (size != nullptr) {
      std::from_chars(setting.data() + sign + 1, setting.data() + setting.size(), *size);
    }
  }
}

}  // namespace

/// The collectives of this process as one of `n` ranks, over a transport of their own. Each member uses those above it.
struct EngineMember::JobRanks {
  JobRanks(Store& store, const plugins::Directories& directories, std::uint32_t rank, std::uint32_t n, bool messages)
      : host(store, fmt::format("{} ranks", n)),
        record(std::filesystem::temp_directory_path() / fmt::format("shardrun-check-{}-{}", getpid(), n),
               static_cast<int>(rank)) {
    record.remove();  // the record is never read
    plugins::Transport transport = plugins::Transport::load(directories, SHARDRUN_DEFAULT_TRANSPORT);
    transport.configure({.options = {}, .world_size = n});
    host.open(transport, rank, n);
    set.transports.push_back(std::move(transport));
    set.of_axis.push_back(0);
    partition::Partition partition;
    partition.placements.mesh.axes.push_back({.name = "ranks", .size = n});
    collectives.emplace(set, partition, rank, device::Device::find("cpu"),
                        runtime::TransportMemory{.host = memory, .of_device = nullptr}, 2 * timeout_s, record);
    arrays.emplace(&*collectives, rank, n, messages);
  }

  StoreHost host;
  std::shared_ptr<device::HostMemory> memory = std::make_shared<device::HostMemory>(1);
  runtime::FlightRecorder record;
  runtime::TransportSet set = {.in_order = true};  // repeated work must give the same bits
  std::optional<runtime::Collectives> collectives;
  std::optional<runtime::ArrayCollectives> arrays;
};

EngineMember::EngineMember(Store& store, const plugins::Directories& directories, std::string engine,
                           std::uint32_t rank, std::vector<std::string> settings)
    : Peer(store, rank), directories_(directories), name_(std::move(engine)), settings_(std::move(settings)) {}

EngineMember::~EngineMember() = default;

plugins::Engine EngineMember::open_another() const {
  return plugins::Engine::open(directories_, name_, [](plugins::LogLevel, std::string_view, std::string_view) {});
}

const plugins::Engine& EngineMember::engine() {
  if (!engine_) {
    engine_.emplace(open_another());
  }
  return *engine_;
}

plugins::EngineDeclaration EngineMember::declare(const plugins::Engine& engine, std::uint32_t rank, std::uint32_t n) {
  plugins::EngineRequest request = request_;
  request.rank = rank;
  request.world_size = n;
  return engine.declare(request);
}

void EngineMember::find_job() {
  std::string refusal;
  for (OptionValues& options : small_options(engine().options(), given_options(engine().options(), settings_))) {
    request_ = {.options = std::move(options),
                .task = engine().trains()     ? SR_ENGINE_TRAIN
                        : engine().predicts() ? SR_ENGINE_INFER
                                              : SR_ENGINE_ITERATE,
                .features = 5,
                .outputs = 3};
    set_sizes(request_, settings_);
    for (std::uint32_t n = 1; n <= engine_members; ++n) {
      try {
        for (std::uint32_t rank = 0; rank < n; ++rank) {
          const std::optional<plugins::ArrayView> sample = declare(engine(), rank, n).sample;
          if (sample && std::ranges::find(sample->shape, -1) == sample->shape.end()) {
            request_.features = sample->elements();
          }
        }
        sizes_.push_back(n);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::job) {
          throw Failure(error.message());
        }
        refusal = refusal.empty() ? error.message() : refusal;
      }
    }
    if (!sizes_.empty()) {
      return;
    }
  }
  throw Failure(fmt::format("{}; it accepts none of the small jobs that this suite tries, the first one so: {}",
                            only_with_options, refusal));
}

const std::vector<std::uint32_t>& EngineMember::sizes() {
  if (sizes_.empty()) {
    find_job();
  }
  return sizes_;
}

compile::JobEngine EngineMember::job_on(std::uint32_t n) {
  (void)sizes();
  compile::JobEngine job{.plugin = engine(),
                         .request = request_,
                         .data = {.features = request_.features, .outputs = request_.outputs},
                         .parameters = {}};
  job.request.rank = std::min(rank(), n - 1);
  job.request.world_size = n;
  for (std::uint32_t each = 0; each < n; ++each) {
    plugins::EngineDeclaration declared = declare(engine(), each, n);
    job.parameters.push_back(std::move(declared.parameters));
    job.sample = declared.sample.value_or(plugins::ArrayView{.shape = {request_.features}});
  }
  return job;
}

runtime::ArrayCollectives& EngineMember::ranks(std::uint32_t n) {
  if (n == 1) {
    return alone_;
  }
  std::unique_ptr<JobRanks>& known = ranks_[n];
  if (known == nullptr) {
    known = std::make_unique<JobRanks>(store(), directories_, rank(), n, engine().has_messages());
  }
  return *known->arrays;
}

}  // namespace shardrun::conformance
