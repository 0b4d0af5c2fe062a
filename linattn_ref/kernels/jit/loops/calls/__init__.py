"""How a loop is called, and with what.

``inner``     functions that only compiled code calls
``cache``     the compilation cache
``entrance``  what axes and lengths a kernel may be given, looked at before it is called
``tasks``     the loop over a kernel's tasks, which is compiled apart from it
``threads``   several Python threads, forked processes
``views``     rows and columns of arrays as compiled code wants them
``rows``      arrays as rows without gaps
``heads``     heads of arrays with any strides, and where results are written
"""
