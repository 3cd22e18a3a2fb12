#pragma once

#include <mpi.h>

#include <cstdint>

namespace shardrun::mpi_transport {

/// MPI's type for an SR_DTYPE_...; 16-bit floats are types of two bytes. REQUIRES: MPI is initialised and its lock
/// held.
[[nodiscard]] MPI_Datatype datatype_of(std::uint32_t dtype);

/// The operation that reduces as shardrun/transport.h says: MPI's own where it does the same. REQUIRES: as above.
[[nodiscard]] MPI_Op operation_of(std::uint32_t dtype, std::uint32_t reduction);

}  // namespace shardrun::mpi_transport
