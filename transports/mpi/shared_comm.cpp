#include "transports/mpi/group.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace shardrun::mpi_transport {

SharedComm::SharedComm(MPI_Comm group) : announcements_(Library::duplicate(group)) {
  Library& library = Library::instance();
  try {
    comm_ = Library::duplicate(group);
    library.add(*this);
  } catch (...) {
    library.free_comm(comm_);
    library.free_comm(announcements_);
    throw;
  }
}

SharedComm::~SharedComm() {
  Library& library = Library::instance();
  library.remove(*this);
  if (!has_unanswered_) {
    library.free_comm(announcements_);  // Open MPI 4.1 crashes if a collective is in flight on a freed communicator
  }
  library.free_comm(comm_);
}

void SharedComm::start(SharedCommOp& op, Announcement& announcement) {
  Library::check(
      MPI_Iallreduce(announcement.mine.data(), announcement.least.data(), static_cast<int>(announcement.mine.size()),
                     MPI_UINT64_T, MPI_MIN, announcements_, &announcement.request),
      "MPI_Iallreduce");
  started_.push_back({&op, &announcement});
}

void SharedComm::advance() noexcept {
  while (!started_.empty()) {
    const auto [op, announcement] = started_.front();
    if (op->is_over()) {
      return;
    }
    try {
      int is_answered = 0;
      Library::check(MPI_Test(&announcement->request, &is_answered, MPI_STATUS_IGNORE), "MPI_Test");
      if (is_answered == 0) {
        return;
      }
      if (announcement->least != announcement->mine) {
        op->fail({SR_INVALID, "the members started their ops in different orders"});
        return;
      }
      started_.pop_front();
      op->begin();
    } catch (const sdk::TransportError& error) {
      op->fail(error);
      return;
    } catch (const std::exception& error) {
      op->fail({SR_INTERNAL, error.what()});
      return;
    }
  }
}

void SharedComm::leave(const SharedCommOp& op, std::unique_ptr<Announcement> announcement) {
  std::erase_if(started_, [&](const auto& each) { return each.first == &op; });
  if (announcement->request != MPI_REQUEST_NULL) {
    has_unanswered_ = true;
    Library::instance().keep(std::move(announcement));
  }
}

}  // namespace shardrun::mpi_transport
