# run(COMMAND [argument…]): ends with all that it printed where it fails.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "status ${status} from ${ARGN}\n${output}")
  endif()
endfunction()
