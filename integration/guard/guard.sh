# Reads one order per line until the pipe closes, then cleans up what it was told of.
trap '' HUP INT QUIT TERM

# started prints when a process started, so that a later process with the same id is left alone. It
# prints nothing where there is no /proc.
started() {
	IFS= read -r stat 2>/dev/null <"/proc/$1/stat" || return 0
	set -- ${stat##*) }
	echo "${20}"
}

newline='
'
processes= directories= containers= networks=
while IFS=' ' read -r verb what; do
	case $verb in
	process) processes="$processes$what $(started "$what")$newline" ;;
	forget)
		kept=
		while IFS=' ' read -r pid since; do
			[ -z "$pid" ] || [ "$pid" = "$what" ] || kept="$kept$pid $since$newline"
		done <<-END
			$processes
		END
		processes=$kept
		;;
	directory) directories="$directories$what$newline" ;;
	container) containers="$containers$what$newline" ;;
	network) networks="$networks$what$newline" ;;
	dismiss) exit 0 ;;
	esac
done

while IFS=' ' read -r pid since; do
	[ -n "$pid" ] || continue
	# Another start time means that the id was given away. No process under the id may still mean that
	# its group lives on without its leader.
	now=$(started "$pid")
	[ -z "$now" ] || [ "$now" = "$since" ] || continue
	kill -s KILL -- "-$pid" 2>/dev/null
done <<END
$processes
END

# A container may be in the middle of its creation, and what was killed may still be writing, so
# each removal is tried until there is nothing left, or for ten seconds.
for attempt in 0 1 2 3 4 5 6 7 8 9; do
	left=
	while IFS= read -r name; do
		[ -n "$name" ] || continue
		docker rm --force --volumes "$name" </dev/null >/dev/null 2>&1
		# A container that is not there yet may still come.
		[ "$attempt" -gt 2 ] && ! docker container inspect "$name" </dev/null >/dev/null 2>&1 || left=1
	done <<-END
		$containers
	END
	while IFS= read -r name; do
		[ -n "$name" ] || continue
		docker network rm "$name" </dev/null >/dev/null 2>&1
		[ "$attempt" -gt 2 ] && ! docker network inspect "$name" </dev/null >/dev/null 2>&1 || left=1
	done <<-END
		$networks
	END
	while IFS= read -r path; do
		[ -n "$path" ] || continue
		umount -l -- "$path" 2>/dev/null # of its own file system
		rm -rf -- "$path" 2>/dev/null
		[ ! -e "$path" ] || left=1
	done <<-END
		$directories
	END
	[ -n "$left" ] || break
	sleep 1
done
