#include "bench/collectives/contestant.h"

// Used if no MPI was found when the build was configured.

namespace shardrun::bench {

std::unique_ptr<Contestant> make_mpi() { return nullptr; }
std::optional<Started> start_mpi() { return std::nullopt; }
void end_mpi() {}

}  // namespace shardrun::bench
