#!/bin/sh
# Runs MySQL in the foreground, as the user mysql, with the arguments given. At its first start it
# makes the data directory, and understands two of the variables of the official image:
#
#   MYSQL_ROOT_PASSWORD  of root, who may come from everywhere; letters and digits
#   MYSQL_DATABASE       a database
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
# The server runs the file before it answers.
exec mysqld --no-defaults --user=mysql --datadir="$data" --socket="$data/socket" --init-file="$init" --secure-file-priv=NULL "$@"
