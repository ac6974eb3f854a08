module unetmap

go 1.24
