#include "core/job/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/job/schema.h"

namespace shardrun::job {
namespace {

std::string where(const Job& job, const KeyName& name) {
  return job.is_given(name.section, name.key) ? job.where(name.section, name.key) : "the default";
}

void check_order(const Job& job, const OrderRule& rule, const std::vector<EffectiveSetting>& settings) {
  const EffectiveSetting* const smaller = find_effective(settings, rule.smaller);
  const EffectiveSetting* const larger = find_effective(settings, rule.larger);
  if (smaller == nullptr || larger == nullptr || smaller->value <= larger->value) {
    return;
  }
  const bool given = job.is_given(rule.smaller.section, rule.smaller.key);
  throw Error(ErrorCode::job,
              fmt::format("{}: {} = {} is more than {} = {} ({}); lower the one or raise the other",
                          where(job, given ? rule.smaller : rule.larger), to_string(rule.smaller), smaller->text,
                          to_string(rule.larger), larger->text, where(job, given ? rule.larger : rule.smaller)));
}

void check_effect(const Job& job, const EffectRule& rule, const std::vector<EffectiveSetting>& settings) {
  if (!job.is_given(rule.key.section, rule.key.key) || (rule.of_models && !job.engine.name.empty())) {
    return;
  }
  const std::string name = to_string(rule.key);
  const std::string other = to_string(rule.other);
  if (!rule.value) {
    if (!job.is_given(rule.other.section, rule.other.key)) {
      throw Error(ErrorCode::job, fmt::format("{}: {} has no effect without {}; remove it, or set {}",
                                              where(job, rule.key), name, other, other));
    }
    return;
  }
  const EffectiveSetting* const found = find_effective(settings, rule.other);
  if (found != nullptr && found->text == *rule.value && find_effective(settings, rule.key)->text != rule.harmless) {
    const std::string harmless = rule.harmless ? fmt::format(" or set it to {0} (--set {1}.{2}={0})", *rule.harmless,
                                                             rule.key.section, rule.key.key)
                                               : "";
    throw Error(ErrorCode::job,
                fmt::format("{}: {} has no effect with {} = {} ({}); remove it{}, or change {}", where(job, rule.key),
                            name, other, found->text, where(job, rule.other), harmless, other));
  }
}

void check_exclusive(const Job& job, const ExclusiveRule& rule) {
  std::vector<KeyName> given;
  for (const std::string& key : rule.keys) {
    if (job.is_given(rule.section, key)) {
      given.push_back({rule.section, key});
    }
  }
  if (given.size() > 1) {
    throw Error(ErrorCode::job, fmt::format("{}: {} is given beside {} ({}); keep at most one of {}",
                                            where(job, given[1]), to_string(given[1]), to_string(given[0]),
                                            where(job, given[0]), fmt::join(rule.keys, ", ")));
  }
}

void check_content(const Job& job, const ContentRule& rule) {
  const bool has_one = std::ranges::any_of(rule.keys, [&](const auto& key) { return job.is_given(rule.section, key); });
  if (!has_one && job.is_given(rule.section, "")) {
    throw Error(ErrorCode::job, fmt::format("{}: [{}] needs one of the keys {}; write it, or remove the section",
                                            job.where(rule.section, ""), rule.section, fmt::join(rule.keys, ", ")));
  }
}

std::string any_of_text(const std::vector<KeyName>& names) {
  std::vector<std::string> texts;
  std::ranges::transform(names, std::back_inserter(texts), [](const KeyName& name) { return to_string(name); });
  return fmt::format("{}", fmt::join(texts, " or "));
}

void check_need(const Job& job, const NeedRule& rule) {
  const bool has_one =
      std::ranges::any_of(rule.others, [&](const KeyName& other) { return job.is_given(other.section, other.key); });
  if (job.is_given(rule.key.section, rule.key.key) && !has_one) {
    throw Error(ErrorCode::job, fmt::format("{}: {} needs {}, which is missing; write it too", where(job, rule.key),
                                            to_string(rule.key), any_of_text(rule.others)));
  }
}

void check_of_models(const Job& job) {
  if (job.task == Task::iterate && job.is_given("data", "")) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [data] has no effect on an engine that is iterated ([job] engine = {}, {}); "
                            "remove it",
                            where(job, {"data", ""}), job.engine.name, where(job, {"job", "engine"})));
  }
  for (const KeyName& name : rules().of_models) {
    const bool is_saved = name.section == "checkpoint" && job.task == Task::iterate;  // then the engine has states
    if (!is_saved && job.is_given(name.section, name.key)) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: {} has no effect with [job] engine = {} ({}); remove it", where(job, name),
                              name.key.empty() ? fmt::format("[{}]", name.section) : to_string(name), job.engine.name,
                              where(job, {"job", "engine"})));
    }
  }
}

}  // namespace

const EffectiveSetting* find_effective(const std::vector<EffectiveSetting>& settings, const KeyName& name) {
  const auto found = std::find_if(settings.begin(), settings.end(), [&](const EffectiveSetting& setting) {
    return setting.section == name.section && setting.key == name.key;
  });
  return found == settings.end() ? nullptr : &*found;
}

void check_rules(const Job& job, const std::vector<EffectiveSetting>& settings) {
  if (!job.engine.name.empty()) {
    check_of_models(job);
  }
  for (const ExclusiveRule& rule : rules().exclusive) {
    check_exclusive(job, rule);
  }
  for (const ContentRule& rule : rules().content) {
    check_content(job, rule);
  }
  for (const NeedRule& rule : rules().need) {
    check_need(job, rule);
  }
  for (const EffectRule& rule : rules().effect) {
    check_effect(job, rule, settings);
  }
  for (const OrderRule& rule : rules().order) {
    check_order(job, rule, settings);
  }
}

std::int64_t places_of_mesh(const Job& job) {
  std::int64_t product = 1;
  for (const MeshAxis& axis : job.mesh) {
    if (__builtin_mul_overflow(product, axis.size, &product)) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: the product of the mesh up to axis {} is too large for a 64-bit integer; it must be "
                              "[job] ranks",
                              job.where("mesh", axis.name), shown(axis.name)));
    }
  }
  return product;
}

void check_mesh(const Job& job) {
  if (job.mesh.empty()) {
    return;
  }
  const std::int64_t product = places_of_mesh(job);
  if (product == job.ranks) {
    return;
  }
  std::vector<std::string> sizes;
  for (const MeshAxis& axis : job.mesh) {
    sizes.push_back(fmt::format("{} {}", shown(axis.name), axis.size));
  }
  throw Error(ErrorCode::job,
              fmt::format("{}: the mesh ({}) has {} places for [job] ranks = {} ({}); make the product of its sizes "
                          "equal to ranks, or set ranks = auto, which is that product",
                          job.where("mesh", ""), shown(fmt::format("{}", fmt::join(sizes, ", "))), product, job.ranks,
                          where(job, {"job", "ranks"})));
}

}  // namespace shardrun::job
