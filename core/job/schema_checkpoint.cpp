#include "core/job/schema_sections.h"

namespace shardrun::job {

using enum OptionType;

Section checkpoint_section() {
  return {
      .name = "checkpoint",
      .help =
          "Saves the run's states, so that it can go on later. The section turns checkpoints on, even if it is empty. "
          "A "
          "checkpoint is saved at the end, when a signal (SIGTERM, SIGINT) asks the run to stop, and before [job] "
          "time_limit. A run that is stopped ends with exit code 75. Another strategy, mesh, number of ranks or "
          "precision "
          "can go on from a checkpoint.",
      .settings =
          {
              {{.name = "every",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Steps between two checkpoints; 0: none because of steps.",
                .aliases = {"save_every", "save_steps", "save_interval", "checkpoint_every", "checkpoint_interval",
                            "save_freq", "every_n_train_steps", "interval"}},
               into(&Job::checkpoints, &CheckpointSettings::every)},
              {{.name = "minutes",
                .type = real,
                .default_value = "0",
                .minimum = 0,
                .help = "Minutes between two checkpoints; 0: none because of time."},
               into(&Job::checkpoints, &CheckpointSettings::minutes)},
              {{.name = "keep",
                .type = integer,
                .default_value = "3",
                .minimum = 0,
                .help = "How many of the newest checkpoints stay; 0: all.",
                .aliases = {"save_total_limit", "keep_last", "max_to_keep", "save_top_k", "keep_latest_k"}},
               into(&Job::checkpoints, &CheckpointSettings::keep)},
              {{.name = "keep_every",
                .type = integer,
                .default_value = "0",
                .minimum = 0,
                .help = "Checkpoints of steps that are multiples of this stay, too; 0: none.",
                .aliases = {"keep_period"}},
               into(&Job::checkpoints, &CheckpointSettings::keep_every)},
              {.spec = {.name = "folder",
                        .type = path,
                        .help = "The folder of the checkpoints. All machines of the job must share it.",
                        .optional = true,
                        .aliases = {"dir", "path", "save_folder", "checkpoint_folder", "dirpath"}},
               .store = into(&Job::checkpoints, &CheckpointSettings::folder),
               .default_note = "checkpoints in [job] output"},
              {{.name = "async",
                .type = boolean,
                .default_value = "true",
                .help =
                    "Whether steps go on while a checkpoint is written. That takes memory for a copy of what a rank "
                    "writes, which 'shardrun plan' counts.",
                .aliases = {"async_save", "async_checkpoint", "async_mode"}},
               into(&Job::checkpoints, &CheckpointSettings::async)},
              {{.name = "resume",
                .type = path,
                .default_value = "never",
                .choices = {"never", "auto"},
                .help = "Where the run begins. never: at the start; refused if the folder has checkpoints. auto: after "
                        "the newest checkpoint in the folder; at the start if there is none. Or a checkpoint, a folder "
                        "of them, or the folder of a run: after the newest one there. --resume on the command line "
                        "means auto.",
                .aliases = {"resume_from", "resume_from_checkpoint", "load", "load_checkpoint", "restore",
                            "auto_resume"}},
               into(&Job::checkpoints, &CheckpointSettings::resume)},
              {{.name = "on_failure",
                .type = choice,
                .default_value = "warn",
                .choices = {"warn", "stop"},
                .help = "What a checkpoint that cannot be written does: warn, and try again when the next is due; or "
                        "stop the run."},
               into(&Job::checkpoints, &CheckpointSettings::on_failure)},
          },
      .aliases = {"checkpoints", "checkpointing", "save", "saving"},
  };
}

}  // namespace shardrun::job
