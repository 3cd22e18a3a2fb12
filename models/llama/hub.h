#pragma once

#include <shardrun/sdk/model.hpp>

#include "sizes.h"

namespace llama {

// Reading and writing folders of LlamaForCausalLM and related models, as transformers 4 and 5 write them.

void read_config(const shardrun::sdk::HubConfig& config);
void write_config(const shardrun::sdk::ModelJob& job, const shardrun::sdk::ConfigOutput& config);
void name_tensors(const Sizes& sizes, const shardrun::sdk::TensorNames& names);

}  // namespace llama
