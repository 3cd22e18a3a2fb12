#pragma once

#include <mpi.h>

#include <cstdint>

namespace shardrun::mpi_transport {

/// MPI's type of an SR_DTYPE_...; halves are types of two bytes. REQUIRES: MPI is initialised and its lock is held.
[[nodiscard]] MPI_Datatype datatype_of(std::uint32_t dtype);

/// The operation that reduces elements of that type as shardrun/transport.h says: MPI's own where that is the same.
/// REQUIRES: likewise.
[[nodiscard]] MPI_Op operation_of(std::uint32_t dtype, std::uint32_t reduction);

}  // namespace shardrun::mpi_transport
