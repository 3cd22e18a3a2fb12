#include "core/conformance/engine_member.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/mesh/placement.h"

namespace shardrun::conformance {
namespace {

using plugins::ArrayView;
using plugins::EngineParameter;

constexpr float guard_value = 12345.5F;

std::vector<plugins::NamedArray> named(const std::vector<EngineParameter>& parameters,
                                       std::vector<GuardedFloats>& memory) {
  std::vector<plugins::NamedArray> arrays;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    arrays.push_back({parameters[p].name, {.shape = parameters[p].shape, .address = memory[p].data()}});
  }
  return arrays;
}

mesh::Box box_of(const EngineParameter& parameter) { return {.origin = parameter.origin, .shape = parameter.shape}; }

float weight_of(std::int64_t index) { return static_cast<float>(std::sin(0.9 * static_cast<double>(index) + 1)); }

}  // namespace

float usual_value(const std::string& name, std::int64_t index) {
  return static_cast<float>(0.5 * std::sin(1.3 * static_cast<double>(index) + static_cast<double>(name.size()) +
                                           (name.empty() ? 0 : name.back())));
}

GuardedFloats::GuardedFloats(std::int64_t count) : all_(static_cast<std::size_t>(count) + 2 * margin, guard_value) {}

bool GuardedFloats::is_intact() const {
  const auto is_guard = [](float value) { return value == guard_value; };
  return std::all_of(all_.begin(), all_.begin() + margin, is_guard) &&
         std::all_of(all_.end() - margin, all_.end(), is_guard);
}

EngineRun::EngineRun(EngineMember& member, std::uint32_t n, const ValueOf& values)
    : job_(member.job_on(n)), ranks_(member.ranks(n)) {
  for (const EngineParameter& parameter : job_.own()) {
    const mesh::Box box = box_of(parameter);
    GuardedFloats& memory = parameters_.emplace_back(box.elements());
    gradients_.emplace_back(box.elements());
    for (std::int64_t i = 0; i < memory.size(); ++i) {
      memory.data()[i] = values(parameter.name, box.index_in_whole(parameter.whole, i));
    }
  }
  instance_ = job_.plugin.create(job_.request, named(job_.own(), parameters_), ranks_);
}

std::vector<float> EngineRun::inputs(std::int64_t rows) const {
  const auto [first, own] = job_.rows_of(rows);
  std::vector<float> values;
  for (std::int64_t i = first * job_.request.features; i < (first + own) * job_.request.features; ++i) {
    values.push_back(static_cast<float>(std::cos(0.7 * static_cast<double>(i))));
  }
  return values;
}

void EngineRun::require_intact() const {
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    if (!parameters_[p].is_intact() || !gradients_[p].is_intact()) {
      throw Failure(fmt::format("it writes outside of the memory of '{}' or of its gradient", job_.own()[p].name));
    }
  }
}

std::vector<float> EngineRun::predict(std::int64_t rows) {
  rows_ = rows;
  const std::int64_t own = job_.rows_of(rows).second;
  const std::int64_t outputs = job_.request.outputs;
  std::vector<float> given = inputs(rows);
  predictions_.clear();
  ArrayView samples = job_.samples(own);
  samples.address = given.data();
  instance_->forward(samples, [&](const ArrayView& like) {
    const std::vector<std::int64_t> expected = {own, outputs};
    if (like.shape != expected && (like.elements() != 0 || (own > 0 && !job_.plugin.takes_whole_batch()))) {
      throw Failure(fmt::format("its predictions for {} samples are [{}], expected [{}, {}]", own,
                                fmt::join(like.shape, ", "), own, outputs));
    }
    predictions_.resize(static_cast<std::size_t>(like.elements()));
    return predictions_.data();
  });
  require_intact();
  std::vector<float> all = gathered(predictions_);
  if (job_.plugin.takes_whole_batch()) {  // several ranks can compute all predictions
    all.resize(std::min(all.size(), static_cast<std::size_t>(rows * outputs)));
  }
  if (static_cast<std::int64_t>(all.size()) != rows * outputs) {
    throw Failure(fmt::format("the ranks have {} predicted values for {} samples, expected {}", all.size(), rows,
                              rows * outputs));
  }
  return all;
}

std::vector<float> EngineRun::gathered(std::vector<float> own) {
  std::vector<float> all;
  ranks_.all_gather({.shape = {static_cast<std::int64_t>(own.size())}, .address = own.data()}, 0,
                    [&](const ArrayView& like) {
                      all.resize(static_cast<std::size_t>(like.elements()));
                      return all.data();
                    });
  return all;
}

double EngineRun::weighted_sum(const std::vector<float>& predictions) {
  double sum = 0;
  for (std::size_t i = 0; i < predictions.size(); ++i) {
    sum += static_cast<double>(weight_of(static_cast<std::int64_t>(i))) * predictions[i];
  }
  return sum;
}

WholeValues EngineRun::differentiate() {
  const std::int64_t outputs = job_.request.outputs;
  const std::int64_t first = job_.rows_of(rows_).first * outputs;
  std::vector<float> gradient(predictions_.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = weight_of(first + static_cast<std::int64_t>(i));
  }
  instance_->backward(
      {.shape = {static_cast<std::int64_t>(gradient.size()) / outputs, outputs}, .address = gradient.data()},
      named(job_.own(), gradients_));
  require_intact();
  return whole(gradients_);
}

void EngineRun::load(const WholeValues& tensors) {
  WholeValues copy = tensors;
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const std::vector<EngineParameter>& of_rank : job_.parameters) {
    for (const EngineParameter& parameter : of_rank) {
      shapes[parameter.name] = parameter.whole;
    }
  }
  std::vector<plugins::NamedArray> arrays;
  for (auto& [name, values] : copy) {
    arrays.push_back({name, {.shape = shapes.at(name), .address = values.data()}});
  }
  instance_->load_checkpoint(arrays);
  require_intact();
}

void EngineRun::step(std::int64_t number) {
  if (number == 0) {
    instance_->start();
  }
  instance_->step(number);
  require_intact();
}

void EngineRun::end() {
  instance_.reset();
  ranks_.require_no_messages();
}

WholeValues EngineRun::parameters() { return whole(parameters_); }

WholeValues EngineRun::whole(std::vector<GuardedFloats>& parts) {
  std::vector<float> own;
  for (GuardedFloats& part : parts) {
    own.insert(own.end(), part.data(), part.data() + part.size());
  }
  const std::vector<float> all = gathered(std::move(own));
  auto next = all.begin();
  WholeValues values;
  for (std::size_t rank = 0; rank < job_.parameters.size(); ++rank) {
    for (const EngineParameter& parameter : job_.parameters[rank]) {
      const mesh::Box box = box_of(parameter);
      std::vector<float>& to = values[parameter.name];
      to.resize(static_cast<std::size_t>(mesh::Box{.origin = parameter.whole, .shape = parameter.whole}.elements()),
                guard_value);
      for (std::int64_t i = 0; i < box.elements(); ++i) {
        const float value = *next++;
        float& at = to[static_cast<std::size_t>(box.index_in_whole(parameter.whole, i))];
        if (at != guard_value && at != value) {
          throw Failure(
              fmt::format("the ranks that hold '{}' differ: {} and, on rank {}, {}. Their gradients have to be "
                          "the same: all_reduce them",
                          parameter.name, at, rank, value));
        }
        at = value;
      }
    }
  }
  return values;
}

}  // namespace shardrun::conformance
