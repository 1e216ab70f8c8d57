#!/bin/sh
# Runs MySQL in the foreground as the user mysql, with the given arguments. At its first start it creates the data
# directory, and reads two variables of the official image:
#
#   MYSQL_ROOT_PASSWORD  the password of root, who may connect from any host; only letters and digits
#   MYSQL_DATABASE       the name of the database to create
set -eu

data=/var/lib/mysql
init=$data/rabbitdelay.sql
if ! [ -e "$init" ]; then
	chown mysql:mysql "$data"
	mysqld --no-defaults --user=mysql --datadir="$data" --initialize-insecure
	cat >"$init.new" <<-SQL
		CREATE DATABASE IF NOT EXISTS $MYSQL_DATABASE CHARACTER SET utf8mb4;
		CREATE USER IF NOT EXISTS 'root'@'%' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';
		GRANT ALL ON *.* TO 'root'@'%' WITH GRANT OPTION;
		ALTER USER 'root'@'localhost' IDENTIFIED BY '$MYSQL_ROOT_PASSWORD';
	SQL
	chown mysql:mysql "$init.new"
	mv "$init.new" "$init"
fi
# The server executes the file before it accepts connections.
exec mysqld --no-defaults --user=mysql --datadir="$data" --socket="$data/socket" --init-file="$init" --secure-file-priv=NULL "$@"
