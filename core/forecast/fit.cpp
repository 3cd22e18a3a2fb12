#include "core/forecast/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/compile/plugins.h"
#include "core/device/choice.h"
#include "core/forecast/idle.h"
#include "core/job/raw.h"
#include "core/options/convert.h"

namespace shardrun::forecast {
namespace {

constexpr std::size_t enough_fitting = 3;
constexpr std::size_t most_plans = 30;
constexpr std::size_t most_plans_of_options = 6;
constexpr std::size_t most_plans_of_microbatches = 3;
constexpr std::size_t most_plans_of_meshes = 6;
constexpr std::size_t most_plans_of_grids = 12;

std::size_t idle_count(const job::Job& job, const compile::Compiled& compiled, const Forecast& forecast) {
  const std::optional<IdleRanks> idle = idle_ranks(job, compiled, forecast);
  return idle ? idle->ranks.size() : 0;
}

/// Bytes that a rank needs of the memory that MemoryFit compares. A device with units holds only the rank's arena.
std::uint64_t needed_by(const RankForecast& rank, const device::Device& device) {
  return device.has_units() ? rank.memory.peak - rank.memory.staging : rank.needs();
}

/// A memory, and the local ranks that use it.
struct Shared {
  std::uint64_t memory = 0;
  std::string whose;
  std::vector<std::size_t> ranks;
};

/// The memories that [job] device gives to the `here` local ranks. `memory`: bytes of each; 0: as in `units`.
std::vector<Shared> shared_memories(const job::Job& job, const std::vector<device::Unit>& units, std::int64_t here,
                                    std::uint64_t memory) {
  const std::vector<std::size_t> named = device::parse_device(job.device).units;
  std::map<std::size_t, Shared> used;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(here); ++rank) {
    const std::size_t unit = named.empty() ? rank : named.at(rank);
    Shared& shared = used[unit];
    shared.ranks.push_back(rank);
    shared.memory = memory != 0 ? memory : units.at(unit).memory;
    shared.whose = memory != 0 ? "[cluster] memory" : fmt::format("unit {} ({})", unit, units[unit].name);
  }
  std::vector<Shared> all;
  for (const auto& [unit, shared] : used) {
    all.push_back(shared);
  }
  return all;
}

std::vector<std::uint64_t> needs_of(const job::Job& job, const device::Device& device, const Forecast& forecast) {
  std::vector<std::uint64_t> needs(static_cast<std::size_t>(job.ranks));
  for (const RankForecast& alike : forecast.ranks) {
    for (const std::int64_t rank : alike.members) {
      needs.at(static_cast<std::size_t>(rank)) = needed_by(alike, device);
    }
  }
  return needs;
}

/// Whether two splits give ranks the same memory, FLOPs and sent bytes. The names of their mesh axes may differ.
bool are_alike(const std::vector<RankForecast>& some, const std::vector<RankForecast>& others) {
  const auto traffic = [](const RankForecast& ranks) {
    std::map<std::string, std::uint64_t> bytes;
    for (const auto& [axis, collectives] : ranks.sent) {
      for (const auto& [collective, count] : collectives) {
        bytes[collective] += count;
      }
    }
    return bytes;
  };
  return std::ranges::equal(some, others, [&](const RankForecast& a, const RankForecast& b) {
    return a.members == b.members && a.memory == b.memory && a.flops == b.flops && traffic(a) == traffic(b);
  });
}

double filled(const MemoryFit& fit) { return static_cast<double>(fit.most) / static_cast<double>(fit.memory); }

/// `needs`: per rank of the job. `is_known`: local rank i is rank i; otherwise it may be any rank of the job.
MemoryFit compare(const std::vector<Shared>& memories, const std::vector<std::uint64_t>& needs, bool is_known) {
  const auto fullest = static_cast<std::size_t>(std::ranges::max_element(needs) - needs.begin());
  MemoryFit worst;
  std::set<std::size_t> over;
  for (const Shared& shared : memories) {
    MemoryFit fit = {.memory = shared.memory, .whose = shared.whose};
    for (const std::size_t local_rank : shared.ranks) {
      const std::size_t rank = is_known ? local_rank : fullest;
      fit.ranks.push_back(static_cast<std::int64_t>(rank));
      fit.most += needs[rank];
    }
    if (fit.most > fit.memory && is_known) {
      over.insert(shared.ranks.begin(), shared.ranks.end());
    }
    for (std::size_t rank = 0; fit.most > fit.memory && !is_known && rank < needs.size(); ++rank) {
      if (fit.most - needs[fullest] + needs[rank] > fit.memory) {
        over.insert(rank);
      }
    }
    if (worst.memory == 0 || filled(fit) > filled(worst)) {
      worst = fit;
    }
  }
  worst.over = static_cast<std::int64_t>(over.size());
  return worst;
}

/// The smallest factor of the number that is larger than 1. REQUIRES: number > 1.
std::int64_t smallest_factor(std::int64_t number) {
  std::int64_t factor = 2;
  while (number % factor != 0 && factor < number) {
    ++factor;
  }
  return factor;
}

/// Settings that are applied together.
using Settings = std::vector<std::string>;

class Search {
 public:
  /// `idle`: ranks that the job leaves idle. `most`: bytes that the job needs of the fullest memory.
  Search(const job::Job& job, std::shared_ptr<data::Dataset> dataset, std::size_t idle, std::uint64_t most)
      : job_(job), dataset_(std::move(dataset)), idle_(idle), most_(most) {}

  enum class Until { fits, fits_or_refused, all };
  /// Plans the job with each of these settings, one after the other. `until`: when to stop.
  void try_each(const std::vector<Settings>& kind, Until until) {
    std::optional<Alternative> best;
    for (const Settings& settings : kind) {
      const std::optional<Alternative> planned = plan(settings);
      best = planned && planned->most < (best ? best->most : most_) ? planned : best;
      const bool fits = best && best->fits;
      if ((until != Until::all && fits) || (until == Until::fits_or_refused && !planned)) {
        break;
      }
    }
    if (best) {
      best_.push_back(*best);
    }
  }

  /// Plans each of the other strategies again, with its ranks along two or three mesh axes; by default they are along
  /// one. Keeps a plan that needs less than that default, and less than plans with fewer of these axes.
  void try_grids() {
    const std::vector<Alternative> usual = planned_strategies_;
    std::size_t plans = 0;
    for (const Alternative& strategy : usual) {
      std::map<std::string, std::uint64_t> with_axis;  // per second axis: bytes needed by its first plan
      for (const std::vector<std::pair<std::string, std::int64_t>>& sizes : grids_of(strategy.axes, job_.ranks)) {
        Settings settings = strategy.settings;
        std::uint64_t bound = strategy.most;
        const bool is_useless = std::ranges::any_of(sizes, [&](const auto& each) {
          const auto known = with_axis.find(each.first);
          return known != with_axis.end() && known->second >= strategy.most;
        });
        if (is_useless) {
          continue;
        }
        for (const auto& [axis, size] : sizes) {
          settings.push_back(fmt::format("mesh.{}={}", axis, size));
          const auto known = with_axis.find(axis);
          bound = sizes.size() > 2 && known != with_axis.end() ? std::min(bound, known->second) : bound;
        }
        if (plans++ == most_plans_of_grids) {
          return;
        }
        if (const std::optional<Alternative> planned = plan(settings, bound)) {
          with_axis.emplace(sizes[1].first, planned->most);
        }
      }
    }
  }

  /// Combines the best settings of each kind: starts with the kind that saves the most, and adds one kind at a time.
  void try_together() {
    std::ranges::stable_sort(best_, {}, &Alternative::most);
    Settings settings;
    for (const Alternative& each : best_) {
      const std::size_t before = settings.size();
      settings.insert(settings.end(), each.settings.begin(), each.settings.end());
      if (before > 0 && found_none() && !plan(settings)) {
        settings.resize(before);  // the new settings are refused together with the earlier ones
      }
    }
  }

  [[nodiscard]] bool has_enough() const { return result_.fitting().size() >= enough_fitting; }
  [[nodiscard]] bool found_none() const { return result_.fitting().empty(); }

  FitSearch take() && { return std::move(result_); }

 private:
  /// Sizes of two or three axes:
  /// - the first axis and another one: one has the smallest factor of the number of ranks, and the other the rest;
  /// - two other axes with sizes as equal as possible;
  /// - the first axis, and two others with small factors.
  static std::vector<std::vector<std::pair<std::string, std::int64_t>>> grids_of(const std::vector<std::string>& axes,
                                                                                 std::int64_t ranks) {
    std::vector<std::vector<std::pair<std::string, std::int64_t>>> grids;
    const std::int64_t factor = smallest_factor(ranks);
    if (axes.size() < 2 || factor == ranks) {
      return grids;
    }
    for (const std::int64_t size : std::set<std::int64_t>{factor, ranks / factor}) {
      for (std::size_t a = 1; a < axes.size(); ++a) {
        grids.push_back({{axes[0], ranks / size}, {axes[a], size}});
      }
    }
    const std::int64_t rest = ranks / factor;
    const std::int64_t second = smallest_factor(rest);
    auto even = static_cast<std::int64_t>(std::sqrt(static_cast<double>(ranks)));
    while (ranks % even != 0) {
      --even;
    }
    for (std::size_t a = 1; a < axes.size(); ++a) {
      for (std::size_t b = a + 1; b < axes.size(); ++b) {
        grids.push_back({{axes[a], ranks / even}, {axes[b], even}});
        if (second < rest) {
          grids.push_back({{axes[0], rest / second}, {axes[a], second}, {axes[b], factor}});
        }
      }
    }
    return grids;
  }

  /// Returns nothing if settings are refused or leave ranks idle. Keeps a plan that needs less than the job and `most`.
  std::optional<Alternative> plan(const Settings& settings, std::uint64_t most = UINT64_MAX) {
    if (plans_ == most_plans) {
      return std::nullopt;
    }
    ++plans_;
    std::optional<Alternative> planned;
    if (job_.cluster.flops > 0) {
      planned = plan(settings, true);
    }
    // If [cluster] lacks the rates of a mesh axis that these settings add, the plan is made without times.
    planned = planned ? planned : plan(settings, false);
    if (planned && settings.size() == 1 && settings.front().starts_with("job.strategy=")) {
      planned_strategies_.push_back(*planned);
    }
    if (planned && planned->most < std::min(most_, most)) {
      const auto same = std::ranges::find_if(
          result_.tried, [&](const Alternative& other) { return are_alike(other.ranks, planned->ranks); });
      (same == result_.tried.end() ? result_.tried : same->alike).push_back(*planned);
    }
    return planned;
  }

  std::optional<Alternative> plan(const Settings& settings, bool with_time) {
    try {
      job::Job other = job::parse_job(job::read_job_text(job::canonical_text(job_), job_.file, settings),
                                      compile::schema_providers());
      if (!with_time) {
        other.cluster = {.memory = job_.cluster.memory, .ranks_per_machine = job_.cluster.ranks_per_machine};
      }
      const compile::Compiled compiled = compile::compile(other, 0, {}, dataset_);
      const Forecast forecast = forecast::forecast(other, compiled);
      if (idle_count(other, compiled, forecast) > idle_) {
        return std::nullopt;
      }
      const MemoryFit fit = memory_fit(job_, *compiled.device, forecast).value();
      std::vector<std::string> axes;
      for (const mesh::Axis& axis : compiled.partition.placements.mesh.axes) {
        axes.insert(axis.size > 1 ? axes.begin() : axes.end(), axis.name);
      }
      return Alternative{.settings = settings,
                         .most = fit.most,
                         .fits = fit.fits(),
                         .seconds = forecast.step ? forecast.step->prediction.seconds : 0,
                         .axes = std::move(axes),
                         .ranks = forecast.ranks};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::job && error.code() != ErrorCode::plugin) {
        throw;
      }
      return std::nullopt;
    }
  }

  const job::Job& job_;
  std::shared_ptr<data::Dataset> dataset_;  ///< shared by all plans
  std::size_t idle_;
  std::uint64_t most_;
  std::size_t plans_ = 0;
  FitSearch result_;
  std::vector<Alternative> best_;                ///< the plan that needs least, per kind of setting
  std::vector<Alternative> planned_strategies_;  ///< other strategies with their default mesh
};

std::vector<Settings> other_remat(const job::Job& job) {
  switch (job.train.remat) {
    case job::Remat::none: return {{"train.remat=gathers"}, {"train.remat=selective"}, {"train.remat=layer"}};
    case job::Remat::gathers: return {{"train.remat=selective"}, {"train.remat=layer"}};
    case job::Remat::selective: return {{"train.remat=layer"}};
    case job::Remat::layer: break;
  }
  return {};
}

/// A few settings, each with twice as many microbatches as the one before.
std::vector<Settings> more_microbatches(const job::Job& job) {
  std::vector<Settings> settings;
  for (std::int64_t count = job.data.microbatches * 2;
       count <= job.data.batch && settings.size() < most_plans_of_microbatches; count *= 2) {
    settings.push_back({fmt::format("data.microbatches={}", count)});
  }
  return settings;
}

/// A few settings, each with half the batch of the one before.
std::vector<Settings> smaller_batches(const job::Job& job) {
  std::vector<Settings> settings;
  const bool generates = job::generates(job);
  for (std::int64_t batch = (generates ? job.infer.slots : job.infer.batch) / 2;
       batch > 0 && settings.size() < most_plans_of_microbatches; batch /= 2) {
    settings.push_back({fmt::format("infer.{}={}", generates ? "slots" : "batch", batch)});
  }
  return settings;
}

/// All values of an option, if there are few; otherwise none.
std::vector<std::string> values_of(const OptionSpec& option) {
  constexpr double most_values = 4;
  if (option.type == OptionType::boolean) {
    return {"false", "true"};
  }
  std::vector<std::string> values = option.choices;
  if (option.type == OptionType::integer && option.minimum && option.maximum &&
      *option.maximum - *option.minimum < most_values) {
    for (auto value = static_cast<std::int64_t>(*option.minimum); static_cast<double>(value) <= *option.maximum;
         ++value) {
      values.push_back(std::to_string(value));
    }
  }
  return values;
}

/// For each option of the strategy, a list of settings: one for each value other than the job's.
std::vector<std::vector<Settings>> other_options(const job::Job& job) {
  std::vector<std::vector<Settings>> all;
  std::size_t plans = 0;
  const auto options = compile::schema_providers().strategy_options(job.strategy.name, job);
  for (const OptionSpec& option : options.value_or(std::vector<OptionSpec>{})) {
    const auto present = std::ranges::find(job.strategy.options.entries(), option.name, &OptionValues::Entry::name);
    if (present == job.strategy.options.entries().end()) {
      continue;
    }
    std::vector<Settings> settings;
    for (const std::string& value : values_of(option)) {
      if (value != to_text(option, present->value) && plans < most_plans_of_options) {
        settings.push_back({fmt::format("strategy.{}={}", option.name, value)});
        ++plans;
      }
    }
    all.push_back(std::move(settings));
  }
  return all;
}

/// Settings that move the smallest factor of one axis's size to another axis.
std::vector<Settings> other_meshes(const job::Job& job, const mesh::Mesh& mesh) {
  std::vector<Settings> all;
  for (const mesh::AxisId from : mesh.axes.ids()) {
    const std::int64_t factor = smallest_factor(mesh.size(from));
    for (const mesh::AxisId to : mesh.axes.ids()) {
      if (from == to || mesh.size(from) == 1 || all.size() == most_plans_of_meshes) {
        continue;
      }
      Settings settings;
      for (const mesh::AxisId axis : mesh.axes.ids()) {
        const std::int64_t size = axis == from ? mesh.size(axis) / factor : mesh.size(axis) * (axis == to ? factor : 1);
        const bool is_given = std::ranges::find(job.mesh, mesh.axes[axis].name, &job::MeshAxis::name) != job.mesh.end();
        if (is_given ? size != mesh.size(axis) : size > 1) {
          settings.push_back(fmt::format("mesh.{}={}", mesh.axes[axis].name, size));
        }
      }
      all.push_back(std::move(settings));
    }
  }
  return all;
}

std::vector<Settings> other_strategies(const job::Job& job) {
  std::vector<Settings> settings;
  if (job.ranks == 1 || job.is_given("strategy", "") || !job.sharding.empty() || !job.mesh.empty()) {
    return settings;  // one rank has nothing to split, and the job's sections are written for its own strategy
  }
  for (const std::string& name : compile::schema_providers().strategy_names(job)) {
    if (name != job.strategy.name) {
      settings.push_back({"job.strategy=" + name});
    }
  }
  return settings;
}

/// Returns "[train] remat = layer" for "train.remat=layer".
std::string in_job_file(const std::string& setting) {
  const std::size_t dot = setting.find('.');
  const std::size_t equal = setting.find('=');
  return fmt::format("[{}] {} = {}", setting.substr(0, dot), setting.substr(dot + 1, equal - dot - 1),
                     setting.substr(equal + 1));
}

std::string settings_text(const Alternative& alternative) {
  std::vector<std::string> settings;
  std::ranges::transform(alternative.settings, std::back_inserter(settings), in_job_file);
  return fmt::format("{}", fmt::join(settings, ", "));
}

std::string text_of(const Alternative& alternative) {
  std::string text = settings_text(alternative);
  for (const Alternative& each : alternative.alike) {
    text += ", the same as " + settings_text(each);
  }
  return fmt::format("  {:<60} {}{}\n", text, human_bytes(alternative.most),
                     alternative.seconds > 0 ? ", " + human_time(alternative.seconds) + " a step" : "");
}

}  // namespace

std::vector<Alternative> FitSearch::fitting() const {
  std::vector<Alternative> fitting;
  std::ranges::copy_if(tried, std::back_inserter(fitting), &Alternative::fits);
  return fitting;
}

std::optional<MemoryFit> memory_fit(const job::Job& job, const device::Device& device, const Forecast& forecast) {
  const std::vector<std::size_t> named = device::parse_device(job.device).units;
  const auto memory = static_cast<std::uint64_t>(job.cluster.memory);
  std::vector<device::Unit> units;
  auto most = static_cast<std::size_t>(job.ranks);  // the number of ranks on this machine
  if (memory == 0) {
    try {
      units = device.units();
    } catch (const Error&) {
      // A job may be planned on a machine that lacks the units that it names.
    }
    if (units.empty() || std::ranges::any_of(named, [&](std::size_t unit) { return unit >= units.size(); })) {
      return std::nullopt;
    }
    most = units.size();
  }
  const std::int64_t here =
      std::min<std::int64_t>(job.ranks, static_cast<std::int64_t>(named.empty() ? most : named.size()));
  return compare(shared_memories(job, units, here, memory), needs_of(job, device, forecast), here == job.ranks);
}

MemoryFit fit_of_units(const job::Job& job, const device::Device& device, const Forecast& forecast,
                       std::int64_t ranks_here) {
  return compare(shared_memories(job, device.units(), std::max<std::int64_t>(ranks_here, 1), 0),
                 needs_of(job, device, forecast), ranks_here == job.ranks);
}

FitSearch find_fitting(const job::Job& job, const compile::Compiled& compiled, const Forecast& forecast) {
  Search search(job, compiled.dataset, idle_count(job, compiled, forecast),
                memory_fit(job, *compiled.device, forecast).value().most);
  if (job.task == job::Task::train) {
    search.try_each(other_remat(job), Search::Until::fits);
    // If this many microbatches leave ranks idle, more microbatches do too.
    search.try_each(more_microbatches(job), Search::Until::fits_or_refused);
  } else if (job.task == job::Task::infer) {
    search.try_each(smaller_batches(job), Search::Until::fits);
  }
  for (const std::vector<Settings>& values : other_options(job)) {
    if (!search.has_enough()) {
      search.try_each(values, Search::Until::fits);
    }
  }
  search.try_each(other_meshes(job, compiled.partition.placements.mesh), Search::Until::all);
  if (!search.has_enough()) {
    search.try_each(other_strategies(job), Search::Until::all);
  }
  search.try_together();
  if (!other_strategies(job).empty()) {
    search.try_grids();
  }
  return std::move(search).take();
}

std::string to_string(const MemoryFit& fit) {
  const std::int64_t first = fit.ranks.front();
  const std::string ranks =
      fit.ranks.size() == 1 ? fmt::format("rank {}, needs", first)
      : first == fit.ranks.back()
          ? fmt::format("{} ranks that share a unit, each as rank {}, need", fit.ranks.size(), first)
          : fmt::format("ranks {} that share a unit, need", fmt::join(fit.ranks, ", "));
  const std::string fullest =
      fmt::format("{} {} of the {} of {}", ranks, human_bytes(fit.most), human_bytes(fit.memory), fit.whose);
  if (fit.fits()) {
    return fmt::format("every rank fits: the fullest, {}: {:.3g} %", fullest, 100 * filled(fit));
  }
  return fmt::format("{} not fit: the fullest, {}: {} too much ({} bytes)", counted(fit.over, "rank does", "ranks do"),
                     fullest, human_bytes(fit.most - fit.memory), fit.most - fit.memory);
}

std::vector<std::string> memory_notices(const MemoryFit& fit, std::uint64_t available, std::int64_t ranks_here) {
  std::vector<std::string> notices;
  if (!fit.fits()) {
    const bool is_compared = available != 0 && ranks_here != 0;
    notices.push_back(to_string(fit) +
                      (is_compared ? "; this machine has enough, and the run goes on" : "; the run goes on"));
  }
  const std::uint64_t share = available / static_cast<std::uint64_t>(std::max<std::int64_t>(ranks_here, 1));
  if (available != 0 && fit.memory > share) {
    notices.push_back(fmt::format("[cluster] memory is {} a rank, and this machine has {} available{}",
                                  human_bytes(fit.memory), human_bytes(share),
                                  ranks_here <= 1 ? "" : fmt::format(" for each of the {} ranks here", ranks_here)));
  }
  return notices;
}

std::string to_string(const FitSearch& search) {
  std::string fits;
  std::string others;
  std::vector<Alternative> by_time = search.tried;
  std::ranges::stable_sort(by_time, {}, [](const Alternative& alternative) {
    return alternative.seconds > 0 ? alternative.seconds : std::numeric_limits<double>::infinity();
  });
  for (const Alternative& alternative : by_time) {
    (alternative.fits ? fits : others) += text_of(alternative);
  }
  std::string text = fits.empty() ? "nothing that was tried makes it fit; use more ranks, or a smaller model\n"
                                  : "it fits with one of these, each planned; the fullest memory then needs\n" + fits;
  return others.empty() ? text : text + "tried too, and not enough:\n" + others;
}

}  // namespace shardrun::forecast
