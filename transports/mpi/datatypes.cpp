#include "transports/mpi/datatypes.h"

#include <shardrun/sdk/reduce.hpp>
#include <shardrun/transport.h>

#include <array>

#include "transports/mpi/library.h"

namespace shardrun::mpi_transport {
namespace {

MPI_Datatype make_half() {
  MPI_Datatype half = MPI_DATATYPE_NULL;
  Library::check(MPI_Type_contiguous(2, MPI_BYTE, &half), "MPI_Type_contiguous");
  Library::check(MPI_Type_commit(&half), "MPI_Type_commit");
  return half;
}

MPI_Datatype f16() {
  static const MPI_Datatype half = make_half();
  return half;
}

MPI_Datatype bf16() {
  static const MPI_Datatype half = make_half();
  return half;
}

/// MPI passes the type as the only information.
template <std::uint32_t reduction>
void reduce(void* from, void* to, int* count, MPI_Datatype* type) {
  const std::uint32_t dtype = *type == MPI_FLOAT    ? SR_DTYPE_F32
                              : *type == MPI_DOUBLE ? SR_DTYPE_F64
                              : *type == f16()      ? SR_DTYPE_F16
                                                    : SR_DTYPE_BF16;
  sdk::reduce(dtype, reduction, to, from, static_cast<std::uint64_t>(*count));
}

MPI_Op make_operation(MPI_User_function* function) {
  MPI_Op operation = MPI_OP_NULL;
  Library::check(MPI_Op_create(function, 1, &operation), "MPI_Op_create");
  return operation;
}

MPI_Op own_operation(std::uint32_t reduction) {
  static const std::array<MPI_Op, 4> operations = {
      make_operation(reduce<SR_REDUCE_SUM>), make_operation(reduce<SR_REDUCE_PRODUCT>),
      make_operation(reduce<SR_REDUCE_MIN>), make_operation(reduce<SR_REDUCE_MAX>)};
  return operations[reduction - SR_REDUCE_SUM];
}

}  // namespace

MPI_Datatype datatype_of(std::uint32_t dtype) {
  switch (dtype) {
    case SR_DTYPE_F32: return MPI_FLOAT;
    case SR_DTYPE_F64: return MPI_DOUBLE;
    case SR_DTYPE_F16: return f16();
    case SR_DTYPE_BF16: return bf16();
    case SR_DTYPE_I8: return MPI_INT8_T;
    case SR_DTYPE_U8: return MPI_UINT8_T;
    case SR_DTYPE_I32: return MPI_INT32_T;
    case SR_DTYPE_U32: return MPI_UINT32_T;
    case SR_DTYPE_I64: return MPI_INT64_T;
    case SR_DTYPE_U64: return MPI_UINT64_T;
    default: return MPI_BYTE;
  }
}

/// MPI leaves NaN in minimum and maximum undefined, and it has no 16-bit floats. Those cases get functions of our own.
MPI_Op operation_of(std::uint32_t dtype, std::uint32_t reduction) {
  const bool is_half = dtype == SR_DTYPE_F16 || dtype == SR_DTYPE_BF16;
  const bool is_floating = is_half || dtype == SR_DTYPE_F32 || dtype == SR_DTYPE_F64;
  switch (reduction) {
    case SR_REDUCE_SUM: return is_half ? own_operation(reduction) : MPI_SUM;
    case SR_REDUCE_PRODUCT: return is_half ? own_operation(reduction) : MPI_PROD;
    case SR_REDUCE_MIN: return is_floating ? own_operation(reduction) : MPI_MIN;
    default: return is_floating ? own_operation(reduction) : MPI_MAX;
  }
}

}  // namespace shardrun::mpi_transport
