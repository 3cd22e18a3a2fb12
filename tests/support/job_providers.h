#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job.h"

namespace shardrun::test {

/// Providers for parsing jobs without plugins: 4 ranks by default; a model "toy" with an option of every type, a model
/// "bare" without options; a strategy "single" without options, a strategy "split" with two; and three transports.
inline job::SchemaProviders job_providers() {
  using enum OptionType;
  const std::vector<OptionSpec> everything = {
      {.name = "layers", .type = integer, .default_value = "2", .minimum = 1, .maximum = 1000, .help = "Layers."},
      {.name = "width", .type = integer, .minimum = 1, .help = "Width of a layer."},
      {.name = "vocab", .type = integer, .minimum = 1, .help = "Tokens there are.", .optional = true},
      {.name = "scale", .type = real, .default_value = "1.0"},
      {.name = "bias", .type = boolean, .default_value = "true"},
      {.name = "note", .type = text, .default_value = ""},
      {.name = "weights", .type = path, .optional = true},
      {.name = "activation", .type = choice, .default_value = "gelu", .choices = {"gelu", "relu"}},
      {.name = "tags", .type = text_list, .optional = true},
      {.name = "stream", .type = seed, .default_value = "0"},
  };
  const std::vector<OptionSpec> split = {
      {.name = "zero", .type = integer, .default_value = "0", .minimum = 0, .maximum = 3},
      {.name = "schedule", .type = choice_or_path, .default_value = "1f1b", .choices = {"1f1b", "gpipe"}},
  };
  return {
      .model_options = [everything](std::string_view model, const job::Job&) -> std::optional<std::vector<OptionSpec>> {
        if (model == "toy") {
          return everything;
        }
        return model == "bare" ? std::optional(std::vector<OptionSpec>()) : std::nullopt;
      },
      .model_names =
          [](const job::Job&) {
            return std::vector<std::string>{"bare", "toy"};
          },
      .checkpoint_to_resume = [](const job::Job&) { return std::filesystem::path(); },
      .strategy_options = [split](std::string_view strategy,
                                  const job::Job&) -> std::optional<std::vector<OptionSpec>> {
        if (strategy == "split") {
          return split;
        }
        return strategy == "single" ? std::optional(std::vector<OptionSpec>()) : std::nullopt;
      },
      .strategy_names =
          [](const job::Job&) {
            return std::vector<std::string>{"single", "split"};
          },
      .transport_options = [](std::string_view transport, const job::Job&) -> std::optional<std::vector<OptionSpec>> {
        if (transport == "wire") {
          return std::vector<OptionSpec>{{.name = "delay", .type = real, .default_value = "0", .minimum = 0}};
        }
        if (transport == "veil") {
          return std::vector<OptionSpec>{
              {.name = "over", .type = text, .default_value = "shm", .names_transport = true}};
        }
        return transport == "shm" ? std::optional(std::vector<OptionSpec>()) : std::nullopt;
      },
      .transport_names =
          [](const job::Job&) {
            return std::vector<std::string>{"shm", "veil", "wire"};
          },
      .automatic_ranks = [](const job::Job&) { return std::int64_t{4}; },
  };
}

}  // namespace shardrun::test
