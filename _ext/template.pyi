# nothing for Python
