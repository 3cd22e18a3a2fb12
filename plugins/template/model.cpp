// A model: it decides what is computed. It declares states, and writes functions over them as if there were one giant
// device. The host adds gradients, the optimizer and microbatches; any strategy can split it.

#include <shardrun/sdk/model.hpp>

using namespace shardrun::sdk;

namespace {

/// A bigram model: the last token selects a row of a table, which holds the logits of the next token.
class Mine {
 public:
  static constexpr const char* help = "a table of which token follows which";
  /// The data on which it can be trained. A model of tokens has the options `context` and `vocab`.
  static constexpr std::uint32_t data = SR_DATA_TOKENS;

  /// The options of [model] in the job file. The host parses, checks and documents them.
  static std::vector<Option> options() {
    return {integer_option("context", 16, 1, 4096, "tokens that a sequence has"),
            optional(integer_option("vocab", 1, 1, 65536, "size of the vocabulary; from the text where there is one"))};
  }

  /// Every rank calls these with the same input and must get the same graph, so they read no clock, file or
  /// environment.
  void declare(const ModelJob& job, States& states) const {
    const std::int64_t vocab = job.options.has("vocab") ? job.options.integer("vocab") : job.vocab;
    if (vocab < 1 || vocab < job.vocab) {
      // The job has to change. Say what was found and what to do: the user reads this text.
      throw InvalidJob("[model] vocab = " + std::to_string(vocab) + ", but the data has " + std::to_string(job.vocab) +
                           " distinct tokens: leave it out or raise it",
                       "model.vocab");
    }
    // Each dimension has an axis name, by which strategies split it.
    states.parameter("table/weights", {{"vocab", vocab}, {"next", vocab}}, normal(0.02), true);
  }

  /// The losses of a batch. Training minimises their mean.
  Value loss(const ModelJob& job, Function& f) const {
    const Value logits = forward(job, f);
    return cross_entropy(logits, f.input("targets", Element::i32, tokens(job, f)));
  }

  /// Computes for 'shardrun predict' the logits of the token after each token of a batch. It may be left out.
  Value forward(const ModelJob& job, Function& f) const {
    return embedding(f.input("inputs", Element::i32, tokens(job, f)), f.state("table/weights"));
  }

 private:
  static Dims tokens(const ModelJob& job, const Function& f) {
    return {{"batch", f.rows()}, {"seq", job.options.integer("context")}};
  }
};

}  // namespace

SHARDRUN_EXPORT_MODEL(Mine, "mine", "1.0")
