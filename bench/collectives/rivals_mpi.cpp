#define OMPI_SKIP_MPICXX  // skips its C++ bindings, which are in a separate library
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include "bench/collectives/contestant.h"

namespace shardrun::bench {
namespace {

class Mpi final : public Contestant {
 public:
  Mpi() : Contestant("MPI") {}

  Run prepare(const Exercise& e) override {
    const int count = static_cast<int>(e.count);
    switch (e.kind) {
      case Kind::all_reduce:
        return [=] {
          MPI_Allreduce(e.in_place ? MPI_IN_PLACE : e.send, e.recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        };
      case Kind::all_gather:
        return [=] { MPI_Allgather(e.send, count, MPI_FLOAT, e.recv, count, MPI_FLOAT, MPI_COMM_WORLD); };
      case Kind::reduce_scatter:
        return [=] { MPI_Reduce_scatter_block(e.send, e.recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
      case Kind::all_to_all:
        return [=] { MPI_Alltoall(e.send, count, MPI_FLOAT, e.recv, count, MPI_FLOAT, MPI_COMM_WORLD); };
      case Kind::broadcast: return [=] { MPI_Bcast(e.recv, count, MPI_FLOAT, 0, MPI_COMM_WORLD); };
      case Kind::send_recv:
        return [=] {
          MPI_Sendrecv(e.send, count, MPI_FLOAT, static_cast<int>(e.next()), 0, e.recv, count, MPI_FLOAT,
                       static_cast<int>(e.previous()), 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        };
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Contestant> make_mpi() { return std::make_unique<Mpi>(); }

std::optional<Started> start_mpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return Started{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size)};
}

void end_mpi() { MPI_Finalize(); }

}  // namespace shardrun::bench
