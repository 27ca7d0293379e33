# What poslsh may not do to a project that uses it. package.sh has the consumer include this file.
function(check_consumer)
  if(TARGET poslsh_development OR CMAKE_BUILD_TYPE)
    message(FATAL_ERROR "poslsh changes the project it is part of")
  endif()

  # C++20 is all that poslsh asks of its users' compilers.
  foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_OPTIONS)
    get_target_property(value poslsh::poslsh INTERFACE_${property})
    if(value)
      message(FATAL_ERROR "poslsh::poslsh has ${property} ${value}")
    endif()
  endforeach()
endfunction()

# It is included before the consumer has looked for poslsh.
cmake_language(DEFER CALL check_consumer)
