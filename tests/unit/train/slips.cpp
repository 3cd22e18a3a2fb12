#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;
using Catch::StartsWith;

// What people write who come from PyTorch, nanoGPT, Megatron, DeepSpeed, Hugging Face or JAX, or who mistype. Each is
// refused, and the message gives the name used here.

namespace {

/// "section: key = value" puts a line in place of that key's, or adds it; "section: -key" takes it away.
struct Slip {
  std::vector<std::string> edits;
  std::string phrase;  ///< a part of the message
};

void edit(std::string& text, std::string_view what) {
  const std::string section = std::string(what.substr(0, what.find(": ")));
  const std::string line(what.substr(section.size() + 2));
  const std::string header = "[" + section + "]\n";
  if (text.find(header) == std::string::npos) {
    text += header;
  }
  const std::size_t begin = text.find(header) + header.size();
  const std::size_t end = std::min(text.find("\n[", begin), text.size() - 1) + 1;
  const bool removes = line.starts_with("-");
  const std::string key = removes ? line.substr(1) + " =" : line.substr(0, line.find('=') + 1);
  const std::size_t found = text.find("\n" + key, begin - 1);
  if (found < end) {
    text.replace(found + 1, text.find('\n', found + 1) - found, removes ? "" : line + "\n");
  } else {
    text.insert(end, line + "\n");
  }
}

const std::vector<Slip> slips = {
    // nanoGPT's and PyTorch's words for training.
    {{"train: lr = 1e-3"}, ":19: [train] has no key 'lr' (it is 'learning_rate' here); it has steps, optimizer,"},
    {{"train: max_iters = 100"}, "[train] has no key 'max_iters' (it is 'steps' here)"},
    {{"train: max_steps = 100"}, "[train] has no key 'max_steps' (it is 'steps' here)"},
    {{"train: epochs = 3"}, "no key 'epochs' (it is 'steps' here: optimizer steps, not passes over the data)"},
    {{"train: batch_size = 8"}, "[train] has no key 'batch_size' (it is [data] batch here)"},
    {{"train: beta_1 = 0.9"}, "no key 'beta_1' (did you mean 'beta1'?)"},
    {{"train: betas = 0.9, 0.95"}, "no key 'betas' (it is 'beta1' here: the second one is beta2)"},
    {{"train: eps = 1e-8"}, "no key 'eps' (it is 'epsilon' here)"},
    {{"train: grad_clip = 1"}, "no key 'grad_clip' (it is 'clip' here)"},
    {{"train: max_grad_norm = 1"}, "no key 'max_grad_norm' (it is 'clip' here)"},
    {{"train: warmup_iters = 10"}, "no key 'warmup_iters' (it is 'warmup' here)"},
    {{"train: warmup_ratio = 0.1"},
     "no key 'warmup_ratio' (it is 'warmup' here: a number of steps, not a fraction of them)"},
    {{"train: min_lr = 1e-4"}, "no key 'min_lr' (it is 'min_learning_rate' here)"},
    {{"train: weight-decay = 0.1"}, "no key 'weight-decay' (did you mean 'weight_decay'?)"},
    {{"train: learning_rate_decay = cosine"}, "no key 'learning_rate_decay' (it is 'schedule' here)"},
    {{"train: lr_scheduler = cosine"}, "no key 'lr_scheduler' (it is 'schedule' here)"},
    {{"train: lr_decay_iters = 600"}, "(it is 'schedule' here: it ends at the last step)"},
    {{"train: gradient_accumulation_steps = 4"},
     "(it is [data] microbatches here: parts of the batch, which they do not make larger)"},
    {{"train: eval_interval = 10"}, "no key 'eval_interval' (it is 'eval_every' here)"},
    {{"train: log_interval = 10"}, "no key 'log_interval' (it is 'log_every' here)"},
    {{"train: fp16 = true"}, "no key 'fp16' (it is 'precision' here)"},
    {{"train: bf16 = true"}, "no key 'bf16' (it is 'precision' here)"},
    {{"train: gradient_checkpointing = true"}, "no key 'gradient_checkpointing' (it is 'remat' here)"},
    {{"train: optim = adamw_torch"}, "no key 'optim' (it is 'optimizer' here)"},
    {{"train: seed = 1"}, "[train] has no key 'seed' ('seed' is a key of [job])"},
    {{"train: n_layer = 2"}, "[train] has no key 'n_layer' (it is [model] layers here)"},
    {{"train: out_dir = out"}, "[train] has no key 'out_dir' (it is [job] output here)"},
    {{"train: lerning_rate = 1"}, "no key 'lerning_rate' (did you mean 'learning_rate'?)"},
    {{"train: Steps = 5"}, "no key 'Steps' (did you mean 'steps'?)"},
    {{"train: steps = 1e5"}, ":14: [train] steps = 1e5: is not an integer; write its digits alone"},
    // The values of [train].
    {{"train: optimizer = AdamW"}, "[train] optimizer = AdamW: is not one of adamw, sgd (did you mean 'adamw'?)"},
    {{"train: optimizer = Adam"}, "is not one of adamw, sgd (it is 'adamw' here)"},
    {{"train: optimizer = SGD"}, "is not one of adamw, sgd (did you mean 'sgd'?)"},
    {{"train: schedule = cosine_with_warmup"}, "is not one of cosine, linear, constant (it is 'cosine' here)"},
    {{"train: schedule = none"}, "is not one of cosine, linear, constant (it is 'constant' here)"},
    {{"train: precision = bfloat16"}, "is not one of float32, mixed (it is 'mixed' here)"},
    {{"train: remat = full"}, "is not one of none, layer, selective, gathers (it is 'layer' here)"},
    {{"train: remat = off"}, "is not one of none, layer, selective, gathers (it is 'none' here)"},
    // The model, as nanoGPT, Megatron and Hugging Face call its sizes.
    {{"model: n_layer = 2"}, "the model 'gpt' has no key 'n_layer' (it is 'layers' here)"},
    {{"model: n_head = 2"}, "no key 'n_head' (it is 'heads' here)"},
    {{"model: n_embd = 16"}, "no key 'n_embd' (it is 'width' here)"},
    {{"model: block_size = 16"}, "no key 'block_size' (it is 'context' here)"},
    {{"model: num_layers = 2"}, "no key 'num_layers' (it is 'layers' here)"},
    {{"model: hidden_size = 16"}, "no key 'hidden_size' (it is 'width' here)"},
    {{"model: num_attention_heads = 2"}, "no key 'num_attention_heads' (it is 'heads' here)"},
    {{"model: seq_length = 16"}, "no key 'seq_length' (it is 'context' here)"},
    {{"model: vocab_size = 50257"}, "no key 'vocab_size' (it is 'vocab' here)"},
    {{"model: lr = 1e-3"}, "the model 'gpt' has no key 'lr' (it is [train] learning_rate here)"},
    {{"model: batch = 4"}, "the model 'gpt' has no key 'batch' ('batch' is a key of [data] and of [infer])"},
    {{"model: tensor_model_parallel_size = 2"}, "(it is the size of an axis in [mesh] here)"},
    {{"model: bias = True"}, "[model] bias = True: is not a boolean (did you mean 'true'?)"},
    {{"model: name = GPT"}, "'GPT' is no name of a model plugin (did you mean 'gpt'?)"},
    {{"model: name = gtp"}, "there is no model plugin 'gtp' (did you mean 'gpt'?); available: "},
    {{"model: heads = 3"}, ":7: [model] heads = 3 does not divide width = 16"},
    {{"model: vocab = 2"}, ":10: [model] vocab = 2 is smaller than the data's "},
    // The data.
    {{"data: micro_batch_size = 2"}, "(it is 'batch' here: of all ranks and microbatches together;"},
    {{"data: global_batch_size = 8"}, "no key 'global_batch_size' (it is 'batch' here)"},
    {{"data: dataset = corpus.txt"}, "no key 'dataset' (it is 'text' here)"},
    {{"data: val_split = 0.1"}, "(it is 'split' here: the part that is trained on, not the rest)"},
    {{"data: tokenizer = character"}, "is not one of char, byte (it is 'char' here)"},
    {{"data: dtype = uint32"}, "no key 'dtype' (it is 'token_type' here: the element type of token files)"},
    {{"data: token_type = i32"}, "is not one of uint16, uint32 (it is 'uint32' here)"},
    {{"data: token_type = short"}, "is not one of uint16, uint32 (it is 'uint16' here)"},
    {{"data: token_type = int64"}, "(it is 'uint32' here: tokens of 8 bytes are not read, write them as uint32)"},
    {{"data: token_type = uint8"}, "(it is 'uint16' here: tokens of 1 byte are not read, write them as uint16)"},
    {{"data: context = 16"}, "[data] has no key 'context' ('context' is a key of [infer] and of [model])"},
    {{"data: text = corpse.txt"}, ":11: [data] text: cannot read"},
    {{"model: context = 5000"}, ":11: [data] text: the training part of '"},
    {{"data: split = 0.9", "data: validation_text = corpus.txt"},
     ":14: [data] validation_text is given beside [data] split ("},
    {{"data: validation_tokens = val.bin"}, "[data] validation_tokens has no effect without [data] tokens"},
    {{"data: -text"}, ":10: [data] is missing: set text, tokens or arrays"},
    // Ranks, strategies and transports, as torchrun, DeepSpeed and Megatron call them.
    {{"job: world_size = 4"}, "[job] has no key 'world_size' (it is 'ranks' here)"},
    {{"job: nproc_per_node = 4"}, "no key 'nproc_per_node' (it is 'ranks' here)"},
    {{"job: num_gpus = 4"}, "no key 'num_gpus' (it is 'ranks' here)"},
    {{"job: ranks = four"},
     "is not an integer; write its digits alone, without unit, decimal point or exponent, or auto"},
    {{"job: backend = nccl"}, "no key 'backend' (it is 'transport' here)"},
    {{"job: steps = 5"}, "no key 'steps' ('steps' is a key of [train] and of [iterate])"},
    {{"job: trace = true"}, "is not one of none, steps (it is 'steps' here)"},
    {{"job: task = training"}, "is not one of train, iterate, infer (it is 'train' here)"},
    {{"job: strategy = fsdp"}, "there is no strategy plugin 'fsdp' (it is 'zero3' here)"},
    {{"job: strategy = FSDP"}, "'FSDP' is no name of a strategy plugin (it is 'zero3' here)"},
    {{"job: strategy = ddp"}, "there is no strategy plugin 'ddp' (it is 'dp' here)"},
    {{"job: strategy = tensor_parallel"}, "there is no strategy plugin 'tensor_parallel' (it is 'tp' here)"},
    {{"job: strategy = pipeline"}, "there is no strategy plugin 'pipeline' (it is 'pp' here)"},
    {{"job: strategy = megatron"}, "there is no strategy plugin 'megatron' (it is '3d' or 'tp' here)"},
    {{"job: strategy = deepspeed"}, "(it is 'zero1' or 'zero2' or 'zero3' here)"},
    {{"job: strategy = none"}, "there is no strategy plugin 'none' (it is 'single' here)"},
    {{"job: ranks = 2", "job: strategy = dp", "job: transport = NCCL"},
     "'NCCL' is no name of a transport plugin (did you mean 'nccl'?)"},
    {{"job: ranks = 2", "job: strategy = dp", "job: transport = Gloo"}, "(did you mean 'gloo'?)"},
    {{"job: ranks = 2", "job: strategy = dp", "job: transport = SHM"}, "(did you mean 'shm'?)"},
    {{"job: ranks = 2", "job: strategy = dp", "job: transport = ethernet"}, "(it is 'tcp' here)"},
    {{"job: ranks = 2", "job: strategy = pp", "strategy: schedule = 1F1B"}, "(did you mean '1f1b'?)"},
    {{"job: ranks = 2", "job: strategy = pp", "strategy: virtual_pipeline_model_parallel_size = 2"},
     "(it is 'chunks' here)"},
    {{"job: ranks = 2", "job: strategy = pp", "job: chunks = 2"},
     "[job] has no key 'chunks' ('chunks' is a key of [strategy])"},
    {{"mesh: data = 2"}, "make the product of its sizes equal to ranks, or set ranks = auto"},
    {{"mesh: data = 1", "transport: data = shm", "job: strategy = dp"},
     "[transport] data = shm has no effect: the axis has one rank"},
    // Sections.
    {{"optimizer: lr = 1"}, "there is no section [optimizer] (it is [train] here)"},
    {{"dataset: path = x"}, "there is no section [dataset] (it is [data] here)"},
    {{"Model: layers = 2"}, "there is no section [Model] (did you mean 'model'?)"},
    {{"parallelism: tensor = 2"}, "there is no section [parallelism] (it is [mesh] here)"},
    {{"job: include = base.ini"}, "include stands within [job]; put it at the top of the file"},
};

}  // namespace

TEST_CASE("names from other programs are answered with the names used here", "[train][slips]") {
  const TemporaryFolder folder;
  write_file(folder / "corpus.txt", sentences(4000));
  CHECK(slips.size() >= 60);
  for (const Slip& slip : slips) {
    std::string text(text_job);
    for (const std::string& each : slip.edits) {
      edit(text, each);
    }
    INFO(text);
    const std::string message = error_of([&] { static_cast<void>(compile::compile(job_in(folder, text))); });

    CHECK_THAT(message, StartsWith("2: " + (folder / "job.ini").string()) && Contains(slip.phrase));
  }
}
