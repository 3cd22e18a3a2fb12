#include "bench/collectives/contestant.h"

// Where no MPI was found at configure time.

namespace shardrun::bench {

std::unique_ptr<Contestant> make_mpi() { return nullptr; }
std::optional<Started> start_mpi() { return std::nullopt; }
void end_mpi() {}

}  // namespace shardrun::bench
